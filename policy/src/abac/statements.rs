//! Splits a Cedar file into its rules, to know the line of each, and bounds each before the recursive parser reads it.

use cedar_policy::{Policy, PolicyId};
use effectd_contracts::text::is_unprintable;
use miette::Diagnostic;

use crate::error::{Location, PolicyError};
use crate::limits::{CEDAR_DEPTH_MAX, CEDAR_OPERATORS_MAX, CEDAR_RULE_BYTES_MAX};
use crate::source::SourceFile;

pub(crate) struct Statement<'f> {
    file: &'f SourceFile,
    /// The byte offset at which the rule begins, after blanks and comments.
    start: usize,
    text: &'f str,
}

impl<'f> Statement<'f> {
    pub(crate) fn text(&self) -> &'f str {
        self.text
    }

    pub(crate) fn location(&self) -> Location {
        Location::in_file(self.file, self.start)
    }

    fn location_of(&self, offset: usize) -> Location {
        Location::in_file(self.file, self.start + offset)
    }

    /// Parses the rule. Its id is its annotation `@id`, or else its location.
    pub(crate) fn parse(&self) -> Result<Policy, PolicyError> {
        let place = self.location();
        let policy = Policy::parse(Some(PolicyId::new(place.to_string())), self.text).map_err(|errors| {
            let first = errors.iter().next();
            let label = first.and_then(|error| error.labels()).and_then(|mut labels| labels.next());
            let at = self.location_of(label.map_or(0, |label| label.offset()));
            let message = first.map_or_else(|| errors.to_string(), ToString::to_string);
            PolicyError::Syntax { at, message }
        })?;
        match policy.annotation("id") {
            Some(id) if id.is_empty() || id.len() > 128 || id.chars().any(is_unprintable) => {
                Err(PolicyError::invalid(place, "@id must be printable text of 1 to 128 bytes"))
            }
            Some(id) => Ok(policy.new_id(PolicyId::new(id))),
            None => Ok(policy),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    Text,
    Comment,
}

/// All rules of a file. A semicolon ends a rule, except in strings and comments.
pub(crate) fn split(file: &SourceFile) -> Result<Vec<Statement<'_>>, PolicyError> {
    let bytes = file.text.as_bytes();
    let mut found = Vec::new();
    let mut within = Within::Code;
    let mut start: Option<usize> = None;
    let mut size = Complexity::default();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        match within {
            Within::Comment if byte == b'\n' => within = Within::Code,
            Within::Comment => {}
            Within::Text if byte == b'\\' => at += 1,
            Within::Text if byte == b'"' => within = Within::Code,
            Within::Text => {}
            Within::Code if bytes[at..].starts_with(b"//") => within = Within::Comment,
            Within::Code if byte.is_ascii_whitespace() => {}
            Within::Code => {
                let begin = *start.get_or_insert(at);
                within = if byte == b'"' { Within::Text } else { Within::Code };
                let location = || Location::in_file(file, at);
                size.conditionals += usize::from(is_if(bytes, at));
                size.count(byte, at + 1 - begin)
                    .map_err(|message| PolicyError::Syntax { at: location(), message })?;
                if byte == b';' {
                    found.push(Statement { file, start: begin, text: &file.text[begin..=at] });
                    start = None;
                    size = Complexity::default();
                }
            }
        }
        at += 1;
    }
    match start {
        Some(begin) => {
            let message = "this rule has no end; a rule ends with a semicolon".to_owned();
            Err(PolicyError::Syntax { at: Location::in_file(file, begin), message })
        }
        None => Ok(found),
    }
}

/// Whether the keyword `if` begins here.
fn is_if(bytes: &[u8], at: usize) -> bool {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    bytes[at..].starts_with(b"if")
        && !bytes.get(at + 2).is_some_and(part)
        && !at.checked_sub(1).and_then(|before| bytes.get(before)).is_some_and(part)
}

/// Counts open brackets, conditions, `if`s and operators, which bound how deep the parser and the evaluator recurse for one rule.
#[derive(Default)]
struct Complexity {
    depth: usize,
    conditions: usize,
    conditionals: usize,
    operators: usize,
}

impl Complexity {
    fn count(&mut self, byte: u8, bytes: usize) -> Result<(), String> {
        match byte {
            b'(' | b'[' => self.depth += 1,
            b'{' => {
                // Outside of all brackets, it begins a `when` or `unless`; each nests those after it.
                self.conditions += usize::from(self.depth == 0);
                self.depth += 1;
            }
            b')' | b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            b'&' | b'|' | b'+' | b'-' | b'*' | b'!' | b'.' | b'=' | b'<' | b'>' => self.operators += 1,
            _ => {}
        }
        if self.depth > CEDAR_DEPTH_MAX {
            return Err(format!("a rule may nest brackets at most {CEDAR_DEPTH_MAX} deep"));
        }
        if self.conditions > CEDAR_DEPTH_MAX {
            return Err(format!("a rule may have at most {CEDAR_DEPTH_MAX} conditions"));
        }
        if self.conditionals > CEDAR_DEPTH_MAX {
            return Err(format!("a rule may have at most {CEDAR_DEPTH_MAX} `if`s"));
        }
        if self.operators > CEDAR_OPERATORS_MAX {
            return Err(format!("a rule may have at most {CEDAR_OPERATORS_MAX} operator characters"));
        }
        if bytes > CEDAR_RULE_BYTES_MAX {
            return Err(format!("a rule may be at most {CEDAR_RULE_BYTES_MAX} bytes long"));
        }
        Ok(())
    }
}
