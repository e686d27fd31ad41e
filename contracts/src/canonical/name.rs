//! Writes the name of a member, which is a text in JSON whatever it was before.

use std::fmt::{Display, Write};

use serde::Serialize;
use serde::ser::{self, Error as _, Impossible};
use serde_json::Error;

use super::write_text;

/// A member's name: a text, or what has an obvious one. Says how many bytes it has.
pub(super) struct Name<'a> {
    pub(super) out: &'a mut String,
}

impl Name<'_> {
    /// What is written without quotes elsewhere.
    fn shown(self, value: impl Display) -> Result<usize, Error> {
        let begin = self.out.len();
        write!(self.out, "\"{value}\"").map_err(Error::custom)?;
        Ok(self.out.len() - begin - 2)
    }
}

fn no_name<T>() -> Result<T, Error> {
    Err(Error::custom("a member's name must be a text"))
}

impl ser::Serializer for Name<'_> {
    type Ok = usize;
    type Error = Error;
    type SerializeSeq = Impossible<usize, Error>;
    type SerializeTuple = Impossible<usize, Error>;
    type SerializeTupleStruct = Impossible<usize, Error>;
    type SerializeTupleVariant = Impossible<usize, Error>;
    type SerializeMap = Impossible<usize, Error>;
    type SerializeStruct = Impossible<usize, Error>;
    type SerializeStructVariant = Impossible<usize, Error>;

    fn serialize_str(self, value: &str) -> Result<usize, Error> {
        write_text(value, self.out);
        Ok(value.len())
    }

    fn serialize_char(self, value: char) -> Result<usize, Error> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_bool(self, value: bool) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_i8(self, value: i8) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_i16(self, value: i16) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_i32(self, value: i32) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_i64(self, value: i64) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_u8(self, value: u8) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_u16(self, value: u16) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_u32(self, value: u32) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_u64(self, value: u64) -> Result<usize, Error> {
        self.shown(value)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<usize, Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<usize, Error> {
        value.serialize(self)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<usize, Error> {
        value.serialize(self)
    }

    fn serialize_f32(self, _: f32) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_f64(self, _: f64) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_none(self) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_unit(self) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<usize, Error> {
        no_name()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<usize, Error> {
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
