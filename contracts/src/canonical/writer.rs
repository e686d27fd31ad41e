//! Writes a value canonically while it is being serialised: no tree of it is made, and each text is copied once or twice.
//!
//! The members of an object are written as they come. If that was not their order, they are put into it at the object's end.
//! Their names are read where they were written, so that a member costs no memory of its own.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{Display, Write};

use serde::Serialize;
use serde::ser::{self, Error as _};
use serde_json::Error;

use super::name::Name;
use super::{write_float, write_text};

/// What is written on.
#[derive(Default)]
pub(super) struct Page {
    pub(super) text: String,
    /// The members of all objects under way, those of the innermost one last. At the end, those of the value itself are left.
    pub(super) members: Vec<Member>,
    /// Where members are while they are put in order.
    aside: String,
}

/// Where a member is in the text.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) begin: usize,
    /// Behind its name.
    colon: usize,
    end: usize,
    /// Whether the name is written as it is.
    is_plain: bool,
    /// The first bytes of the name, which is mostly enough to compare it.
    head: u64,
}

impl Member {
    /// Its name, from a text that begins at `from`.
    fn name<'a>(&self, text: &'a str, from: usize) -> Cow<'a, str> {
        let quoted = &text[self.begin - from..self.colon - from];
        if self.is_plain {
            return Cow::Borrowed(&quoted[1..quoted.len() - 1]);
        }
        // It was written here, so it can be read.
        Cow::Owned(serde_json::from_str(quoted).unwrap_or_default())
    }
}

/// The order of two members of a text that begins at `from`.
fn compare(a: &Member, b: &Member, text: &str, from: usize) -> Ordering {
    let all = || order(&a.name(text, from), &b.name(text, from));
    a.head.cmp(&b.head).then_with(all)
}

impl Page {
    pub(super) fn with_room(bytes: usize) -> Self {
        Self {
            text: String::with_capacity(bytes),
            ..Self::default()
        }
    }

    /// How a member's name compares to this one.
    pub(super) fn compare(&self, member: &Member, name: &str) -> Ordering {
        order(&member.name(&self.text, 0), name)
    }
}

/// Where a value is written to.
pub(super) struct Writer<'a> {
    pub(super) page: &'a mut Page,
}

impl<'a> Writer<'a> {
    fn shown(self, value: impl Display) -> Result<(), Error> {
        write!(self.page.text, "{value}").map_err(Error::custom)
    }

    fn items(self) -> Items<'a> {
        self.page.text.push('[');
        Items {
            page: self.page,
            is_first: true,
            end: "]",
        }
    }

    fn members(self) -> Members<'a> {
        self.page.text.push('{');
        Members {
            begin: self.page.text.len(),
            first: self.page.members.len(),
            page: self.page,
            in_order: true,
            name: None,
            end: "}",
        }
    }

    /// An object with one member, whose value is still to be written.
    fn variant(self, name: &str) -> Self {
        self.page.text.push('{');
        write_text(name, &mut self.page.text);
        self.page.text.push(':');
        self
    }
}

impl<'a> ser::Serializer for Writer<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Members<'a>;
    type SerializeStruct = Members<'a>;
    type SerializeStructVariant = Members<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.page.text.push_str(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_i16(self, value: i16) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_i32(self, value: i32) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_i64(self, value: i64) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_u8(self, value: u8) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_u16(self, value: u16) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_u32(self, value: u32) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_u64(self, value: u64) -> Result<(), Error> {
        self.shown(value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), Error> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Error> {
        match value.is_finite() {
            true => write_float(value, &mut self.page.text),
            false => self.page.text.push_str("null"),
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        write_text(value, &mut self.page.text);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Error> {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.page.text.push_str("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let Writer { page } = self.variant(variant);
        value.serialize(Writer { page })?;
        page.text.push('}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Error> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, Error> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, Error> {
        Ok(self.items())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items<'a>, Error> {
        let mut items = self.variant(variant).items();
        items.end = "]}";
        Ok(items)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'a>, Error> {
        Ok(self.members())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'a>, Error> {
        Ok(self.members())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'a>, Error> {
        let mut members = self.variant(variant).members();
        members.end = "}}";
        Ok(members)
    }
}

/// An array under way.
pub(super) struct Items<'a> {
    page: &'a mut Page,
    is_first: bool,
    end: &'static str,
}

impl Items<'_> {
    fn item(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_first) {
            self.page.text.push(',');
        }
        value.serialize(Writer { page: self.page })
    }

    fn over(self) -> Result<(), Error> {
        self.page.text.push_str(self.end);
        Ok(())
    }
}

/// An object under way.
pub(super) struct Members<'a> {
    page: &'a mut Page,
    /// Where its first member begins.
    begin: usize,
    /// Its first member among those of the page.
    first: usize,
    in_order: bool,
    /// A member of which only the name is written yet.
    name: Option<Member>,
    end: &'static str,
}

impl Members<'_> {
    /// Writes a member's name. What it is written by says how many bytes it has.
    fn named(&mut self, write: impl FnOnce(&mut String) -> Result<usize, Error>) -> Result<Member, Error> {
        let text = &mut self.page.text;
        let last = self.page.members[self.first..].last();
        if last.is_some() {
            text.push(',');
        }
        let begin = text.len();
        let bytes = write(text)?;
        let colon = text.len();
        text.push(':');
        let mut member = Member {
            begin,
            colon,
            end: colon,
            is_plain: colon - begin == bytes + 2,
            head: 0,
        };
        member.head = head(&member.name(text, 0));
        if let Some(last) = last {
            self.in_order &= compare(last, &member, text, 0) == Ordering::Less;
        }
        Ok(member)
    }

    fn valued(&mut self, mut member: Member, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        value.serialize(Writer { page: self.page })?;
        member.end = self.page.text.len();
        self.page.members.push(member);
        Ok(())
    }

    fn member(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        let member = self.named(|out| {
            write_text(name, out);
            Ok(name.len())
        })?;
        self.valued(member, value)
    }

    fn over(mut self) -> Result<(), Error> {
        if !self.in_order {
            self.put_in_order();
        }
        self.page.text.push_str(self.end);
        // Only the value itself begins with the text.
        if self.begin > 1 {
            self.page.members.truncate(self.first);
        }
        Ok(())
    }

    /// Of members with the same name the last one counts, as it does for a value.
    fn put_in_order(&mut self) {
        let (begin, first) = (self.begin, self.first);
        let Page { text, members, aside } = &mut *self.page;
        aside.clear();
        aside.push_str(&text[begin..]);
        text.truncate(begin);
        // The sort keeps the order of what is equal.
        members[first..].sort_by(|a, b| compare(a, b, aside, begin));
        let mut kept = first;
        for place in first..members.len() {
            let member = members[place];
            let next = members.get(place + 1);
            if next.is_some_and(|next| compare(&member, next, aside, begin) == Ordering::Equal) {
                continue;
            }
            if kept > first {
                text.push(',');
            }
            let moved = |at: usize| at - member.begin + text.len();
            members[kept] = Member {
                begin: moved(member.begin),
                colon: moved(member.colon),
                end: moved(member.end),
                ..member
            };
            text.push_str(&aside[member.begin - begin..member.end - begin]);
            kept += 1;
        }
        members.truncate(kept);
    }
}

/// The order of UTF-16.
fn order(a: &str, b: &str) -> Ordering {
    a.bytes().map(rank).cmp(b.bytes().map(rank))
}

/// Where the first bytes of a name stand in that order. Names of which they are the same may still differ.
fn head(name: &str) -> u64 {
    let mut head = [0; 8];
    for (place, byte) in head.iter_mut().zip(name.bytes()) {
        *place = rank(byte);
    }
    u64::from_be_bytes(head)
}

/// The order of UTF-16 is that of the bytes of UTF-8 but for one thing: what UTF-16 writes in two halves, and UTF-8 with a
/// first byte from 0xf0 to 0xf4, comes before U+E000 to U+FFFF.
fn rank(byte: u8) -> u8 {
    match byte {
        0xee | 0xef => byte + 0x10,
        other => other,
    }
}

impl ser::SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeTuple for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeTupleStruct for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeTupleVariant for Items<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.member(name, value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeStructVariant for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.member(name, value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, name: &T) -> Result<(), Error> {
        self.name = Some(self.named(|out| name.serialize(Name { out }))?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.name.take();
        let name = name.ok_or_else(|| Error::custom("a value came without its name"))?;
        self.valued(name, value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn names_are_in_the_order_of_utf16(a in "[a\u{7f}é\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}",
                                           b in "[a\u{7f}é\u{d7ff}\u{e000}\u{ffff}\u{10000}\u{10ffff}]{0,4}") {
            let expected = a.encode_utf16().cmp(b.encode_utf16());
            proptest::prop_assert_eq!(order(&a, &b), expected);
            let by_head = head(&a).cmp(&head(&b));
            proptest::prop_assert!(by_head == expected || by_head == Ordering::Equal);
        }
    }
}
