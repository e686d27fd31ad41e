//! Writes a value canonically while it is being serialised: no tree of it is made, and each text is copied once or twice.
//!
//! The members of an object are written as they come. If that was not their order, they are put into it at the object's end.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::{Display, Write};
use std::ops::Range;

use serde::Serialize;
use serde::ser::{self, Error as _, Impossible};
use serde_json::Error;

use super::{write_float, write_text};

/// Most members for which room is made before they come.
const MEMBERS_AT_ONCE: usize = 64;

/// Where a value is written to.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut String,
}

impl<'a> Writer<'a> {
    fn shown(self, value: impl Display) -> Result<(), Error> {
        write!(self.out, "{value}").map_err(Error::custom)
    }

    fn items(self) -> Items<'a> {
        self.out.push('[');
        Items {
            out: self.out,
            is_first: true,
            end: "]",
        }
    }

    fn members(self, likely: usize) -> Members<'a> {
        self.out.push('{');
        Members {
            begin: self.out.len(),
            out: self.out,
            found: Vec::with_capacity(likely.min(MEMBERS_AT_ONCE)),
            in_order: true,
            name: None,
            end: "}",
        }
    }

    /// An object with one member, whose value is still to be written.
    fn variant(self, name: &str) -> Self {
        self.out.push('{');
        write_text(name, self.out);
        self.out.push(':');
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
        self.out.push_str(if value { "true" } else { "false" });
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
            true => write_float(value, self.out),
            false => self.out.push_str("null"),
        }
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Error> {
        write_text(value, self.out);
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
        self.out.push_str("null");
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
        let Writer { out } = self.variant(variant);
        value.serialize(Writer { out })?;
        out.push('}');
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

    fn serialize_map(self, count: Option<usize>) -> Result<Members<'a>, Error> {
        Ok(self.members(count.unwrap_or(0)))
    }

    fn serialize_struct(self, _: &'static str, count: usize) -> Result<Members<'a>, Error> {
        Ok(self.members(count))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        count: usize,
    ) -> Result<Members<'a>, Error> {
        let mut members = self.variant(variant).members(count);
        members.end = "}}";
        Ok(members)
    }
}

/// An array under way.
pub(super) struct Items<'a> {
    out: &'a mut String,
    is_first: bool,
    end: &'static str,
}

impl Items<'_> {
    fn item(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(',');
        }
        value.serialize(Writer { out: self.out })
    }

    fn over(self) -> Result<(), Error> {
        self.out.push_str(self.end);
        Ok(())
    }
}

/// An object under way.
pub(super) struct Members<'a> {
    out: &'a mut String,
    /// Where its first member begins.
    begin: usize,
    /// Each member's name, and where all of it is.
    found: Vec<(Cow<'static, str>, Range<usize>)>,
    in_order: bool,
    /// The name for which a value is to come.
    name: Option<String>,
    end: &'static str,
}

impl Members<'_> {
    fn member(&mut self, name: Cow<'static, str>, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
        if let Some((last, _)) = self.found.last() {
            self.out.push(',');
            self.in_order &= order(last, &name) == Ordering::Less;
        }
        let begin = self.out.len();
        write_text(&name, self.out);
        self.out.push(':');
        value.serialize(Writer { out: self.out })?;
        self.found.push((name, begin..self.out.len()));
        Ok(())
    }

    fn over(mut self) -> Result<(), Error> {
        if !self.in_order {
            self.put_in_order();
        }
        self.out.push_str(self.end);
        Ok(())
    }

    /// Of members with the same name the last one counts, as it does for a value.
    fn put_in_order(&mut self) {
        let written = self.out.split_off(self.begin);
        // The sort keeps the order of what is equal.
        self.found.sort_by(|(a, _), (b, _)| order(a, b));
        let mut members = self.found.iter().peekable();
        while let Some((name, place)) = members.next() {
            if members.peek().is_some_and(|(next, _)| next == name) {
                continue;
            }
            if self.out.len() > self.begin {
                self.out.push(',');
            }
            self.out
                .push_str(&written[place.start - self.begin..place.end - self.begin]);
        }
    }
}

/// The order of UTF-16, which is that of bytes as long as there is nothing but ASCII.
fn order(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() {
        a.cmp(b)
    } else {
        a.encode_utf16().cmp(b.encode_utf16())
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
        self.member(Cow::Borrowed(name), value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeStructVariant for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        self.member(Cow::Borrowed(name), value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

impl ser::SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, name: &T) -> Result<(), Error> {
        self.name = Some(name.serialize(Name)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let name = self.name.take();
        let name = name.ok_or_else(|| Error::custom("a value came without its name"))?;
        self.member(Cow::Owned(name), value)
    }

    fn end(self) -> Result<(), Error> {
        self.over()
    }
}

/// A member's name: a text, or what has an obvious one.
struct Name;

fn no_name<T>() -> Result<T, Error> {
    Err(Error::custom("a member's name must be a text"))
}

impl ser::Serializer for Name {
    type Ok = String;
    type Error = Error;
    type SerializeSeq = Impossible<String, Error>;
    type SerializeTuple = Impossible<String, Error>;
    type SerializeTupleStruct = Impossible<String, Error>;
    type SerializeTupleVariant = Impossible<String, Error>;
    type SerializeMap = Impossible<String, Error>;
    type SerializeStruct = Impossible<String, Error>;
    type SerializeStructVariant = Impossible<String, Error>;

    fn serialize_str(self, value: &str) -> Result<String, Error> {
        Ok(value.to_owned())
    }

    fn serialize_char(self, value: char) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_bool(self, value: bool) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_i8(self, value: i8) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_i16(self, value: i16) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_i32(self, value: i32) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_i64(self, value: i64) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_u8(self, value: u8) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_u16(self, value: u16) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_u32(self, value: u32) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_u64(self, value: u64) -> Result<String, Error> {
        Ok(value.to_string())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<String, Error> {
        Ok(variant.to_owned())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<String, Error> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<String, Error> {
        value.serialize(self)
    }

    fn serialize_f32(self, _: f32) -> Result<String, Error> {
        no_name()
    }

    fn serialize_f64(self, _: f64) -> Result<String, Error> {
        no_name()
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<String, Error> {
        no_name()
    }

    fn serialize_none(self) -> Result<String, Error> {
        no_name()
    }

    fn serialize_unit(self) -> Result<String, Error> {
        no_name()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<String, Error> {
        no_name()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<String, Error> {
        no_name()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        no_name()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        no_name()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        no_name()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        no_name()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        no_name()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        no_name()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        no_name()
    }
}
