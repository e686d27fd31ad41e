//! The bytes of D-Bus, as much of them as one call and its answer need.
//!
//! Written little-endian; read in either order, since a bus hands on what others wrote. Whatever is read comes from another process:
//! each length is checked before it is believed, and nothing is read that was not asked about.

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Asks for something.
    Call,
    /// Answers a call.
    Return,
    /// Says why a call is not done.
    Error,
    /// Tells something unasked.
    Signal,
}

impl Kind {
    const ALL: [(u8, Kind); 4] = [
        (1, Kind::Call),
        (2, Kind::Return),
        (3, Kind::Error),
        (4, Kind::Signal),
    ];
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Its number, chosen by its sender, never 0.
    pub serial: u32,
    /// The number of the call that it answers.
    pub reply_to: Option<u32>,
    /// Which object.
    pub path: Option<String>,
    /// Which interface of it.
    pub interface: Option<String>,
    /// Which method or signal.
    pub member: Option<String>,
    /// The name of the error.
    pub error: Option<String>,
    /// Who is to have it.
    pub destination: Option<String>,
    /// Who sent it, by the word of the bus.
    pub sender: Option<String>,
    /// The types of the body.
    pub signature: String,
    /// The values.
    pub body: Vec<u8>,
    /// In which order the bytes of the body's numbers stand.
    pub order: Order,
}

/// In which order the bytes of a number stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The least first.
    #[default]
    Little,
    /// The least last.
    Big,
}

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these are not the bytes of a message: {0}")]
pub struct Malformed(pub &'static str);

/// The part of a message that says how long it is.
pub const HEAD_BYTES: usize = 16;

/// Values on their way out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    /// A byte.
    pub fn byte(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// A number.
    pub fn number(&mut self, value: u32) -> &mut Self {
        self.align(4);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// A text, or the path of an object. Ends at the first NUL, which no text may have in it.
    pub fn text(&mut self, value: &str) -> &mut Self {
        let value = value.split('\0').next().unwrap_or_default();
        self.number(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.bytes.extend(value.as_bytes());
        self.byte(0)
    }

    /// The types of values; only our own, which are short.
    pub fn signature(&mut self, value: &str) -> &mut Self {
        self.byte(u8::try_from(value.len()).unwrap_or(u8::MAX));
        self.bytes.extend(value.as_bytes());
        self.byte(0)
    }

    /// Several values of one type, each of which begins at a multiple of `align`.
    pub fn array(&mut self, align: usize, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.number(0);
        let at = self.bytes.len() - 4;
        // The gap before the first value does not count.
        self.align(align);
        let begin = self.bytes.len();
        fill(self);
        let length = u32::try_from(self.bytes.len() - begin).unwrap_or(u32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        self
    }

    /// Where a structure or an entry of a dictionary begins.
    pub fn structure(&mut self) -> &mut Self {
        self.align(8);
        self
    }
}

/// Values on their way in.
#[derive(Debug, Clone)]
pub struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    order: Order,
}

impl<'b> Reader<'b> {
    /// From the first of these bytes on.
    pub fn new(bytes: &'b [u8], order: Order) -> Self {
        Self { bytes, at: 0, order }
    }

    fn take(&mut self, count: usize) -> Result<&'b [u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(Malformed("too long"))?;
        let taken = self
            .bytes
            .get(self.at..end)
            .ok_or(Malformed("it ends too early"))?;
        self.at = end;
        Ok(taken)
    }

    fn align(&mut self, to: usize) -> Result<(), Malformed> {
        self.take(self.at.next_multiple_of(to) - self.at).map(drop)
    }

    /// A byte.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// A number.
    pub fn number(&mut self) -> Result<u32, Malformed> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().map_err(|_| Malformed("no number"))?;
        Ok(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn length(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.number()?).map_err(|_| Malformed("too long"))
    }

    fn ended(&mut self, length: usize) -> Result<&'b str, Malformed> {
        let text = self.take(length)?;
        if self.byte()? != 0 {
            return Err(Malformed("a text does not end"));
        }
        std::str::from_utf8(text).map_err(|_| Malformed("a text is no UTF-8"))
    }

    /// A text, or the path of an object.
    pub fn text(&mut self) -> Result<&'b str, Malformed> {
        let length = self.length()?;
        self.ended(length)
    }

    /// The types of values.
    pub fn signature(&mut self) -> Result<&'b str, Malformed> {
        let length = usize::from(self.byte()?);
        self.ended(length)
    }

    /// The values of an array, each of which begins at a multiple of `align`.
    pub fn array(&mut self, align: usize) -> Result<Reader<'b>, Malformed> {
        let length = self.length()?;
        self.align(align)?;
        let begin = self.at;
        self.take(length)?;
        // Gaps count from the beginning of everything.
        Ok(Reader {
            bytes: &self.bytes[..begin + length],
            at: begin,
            order: self.order,
        })
    }

    /// Where a structure or an entry of a dictionary begins.
    pub fn structure(&mut self) -> Result<(), Malformed> {
        self.align(8)
    }

    /// Whether nothing is left.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

impl Message {
    /// A call of a method.
    pub fn call(serial: u32, [destination, path, interface, member]: [&str; 4]) -> Self {
        Self {
            path: Some(path.to_owned()),
            interface: Some(interface.to_owned()),
            member: Some(member.to_owned()),
            destination: Some(destination.to_owned()),
            ..Self::empty(Kind::Call, serial)
        }
    }

    /// A message that says nothing yet.
    pub fn empty(kind: Kind, serial: u32) -> Self {
        Self {
            kind,
            serial,
            reply_to: None,
            path: None,
            interface: None,
            member: None,
            error: None,
            destination: None,
            sender: None,
            signature: String::new(),
            body: Vec::new(),
            order: Order::Little,
        }
    }

    /// With these values.
    pub fn with(mut self, signature: &str, body: Writer) -> Self {
        signature.clone_into(&mut self.signature);
        self.body = body.into_bytes();
        self
    }

    /// Its bytes. What the bus itself says of a message is not written.
    pub fn encode(&self) -> Vec<u8> {
        let kind = Kind::ALL.iter().find(|(_, kind)| *kind == self.kind);
        let mut out = Writer::default();
        out.byte(b'l').byte(kind.map_or(0, |(code, _)| *code));
        out.byte(0).byte(1);
        out.number(u32::try_from(self.body.len()).unwrap_or(u32::MAX));
        out.number(self.serial);
        out.array(8, |fields| {
            let texts = [
                (1, "o", &self.path),
                (2, "s", &self.interface),
                (3, "s", &self.member),
                (4, "s", &self.error),
                (6, "s", &self.destination),
            ];
            for (code, signature, text) in texts {
                if let Some(text) = text {
                    fields.structure().byte(code).signature(signature).text(text);
                }
            }
            if let Some(serial) = self.reply_to {
                fields.structure().byte(5).signature("u").number(serial);
            }
            if !self.signature.is_empty() {
                fields
                    .structure()
                    .byte(8)
                    .signature("g")
                    .signature(&self.signature);
            }
        });
        out.structure();
        let mut bytes = out.into_bytes();
        bytes.extend(&self.body);
        bytes
    }

    /// How long the message is that begins so, if that is at most so long.
    pub fn length(head: &[u8; HEAD_BYTES], bytes_max: usize) -> Result<usize, Malformed> {
        let (body, fields) = Self::lengths(head)?;
        let length = fields
            .checked_next_multiple_of(8)
            .and_then(|fields| fields.checked_add(HEAD_BYTES)?.checked_add(body));
        length
            .filter(|length| *length <= bytes_max)
            .ok_or(Malformed("it is longer than any that is expected"))
    }

    fn lengths(head: &[u8; HEAD_BYTES]) -> Result<(usize, usize), Malformed> {
        let mut reader = Reader::new(head, order(head[0])?);
        reader.take(4)?;
        let body = reader.length()?;
        reader.number()?;
        Ok((body, reader.length()?))
    }

    /// Reads one whole message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let head = bytes
            .first_chunk::<HEAD_BYTES>()
            .ok_or(Malformed("it ends too early"))?;
        if Self::length(head, bytes.len())? != bytes.len() {
            return Err(Malformed("it goes on behind its end"));
        }
        let (body, _) = Self::lengths(head)?;
        let order = order(head[0])?;
        let kind = Kind::ALL.iter().find(|(code, _)| *code == head[1]);
        let (_, kind) = kind.ok_or(Malformed("of no kind that is known"))?;
        let mut reader = Reader::new(bytes, order);
        reader.take(8)?;
        let serial = reader.number()?;
        let mut message = Self {
            order,
            body: bytes[bytes.len() - body..].to_vec(),
            ..Self::empty(*kind, serial)
        };
        let mut fields = reader.array(8)?;
        while !fields.is_at_end() {
            fields.structure()?;
            message.field(&mut fields)?;
        }
        Ok(message)
    }

    fn field(&mut self, from: &mut Reader<'_>) -> Result<(), Malformed> {
        let code = from.byte()?;
        let value = match from.signature()? {
            "s" | "o" => Value::Text(from.text()?),
            "g" => Value::Text(from.signature()?),
            "u" => Value::Number(from.number()?),
            _ => return Err(Malformed("a field of a type that none has")),
        };
        match (code, value) {
            (1, Value::Text(text)) => self.path = Some(text.to_owned()),
            (2, Value::Text(text)) => self.interface = Some(text.to_owned()),
            (3, Value::Text(text)) => self.member = Some(text.to_owned()),
            (4, Value::Text(text)) => self.error = Some(text.to_owned()),
            (5, Value::Number(serial)) => self.reply_to = Some(serial),
            (6, Value::Text(text)) => self.destination = Some(text.to_owned()),
            (7, Value::Text(text)) => self.sender = Some(text.to_owned()),
            (8, Value::Text(text)) => text.clone_into(&mut self.signature),
            // What later versions add does not concern us.
            (_, Value::Text(_) | Value::Number(_)) => {}
        }
        Ok(())
    }
}

enum Value<'b> {
    Text(&'b str),
    Number(u32),
}

fn order(byte: u8) -> Result<Order, Malformed> {
    match byte {
        b'l' => Ok(Order::Little),
        b'B' => Ok(Order::Big),
        _ => Err(Malformed("it begins with no order of bytes")),
    }
}

#[cfg(test)]
mod tests;
