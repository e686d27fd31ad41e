//! Reads the lines of a program from pieces of any length.

/// Longest line: the largest answer of a service.
const LINE_BYTES_MAX: usize = effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;

#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
    /// Where the next line begins.
    from: usize,
    /// Up to where there is no line end.
    searched: usize,
}

/// A line is longer than any answer may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    pub(super) fn add(&mut self, piece: &[u8]) -> Result<(), TooLong> {
        self.bytes.drain(..self.from);
        self.searched -= self.from;
        self.from = 0;
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() <= LINE_BYTES_MAX { Ok(()) } else { Err(TooLong) }
    }

    /// The next whole line, without its end.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let Some(found) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let (from, end) = (self.from, self.searched + found);
        self.from = end + 1;
        self.searched = self.from;
        Some(self.bytes[from..end].trim_ascii())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_without_an_end_is_refused_at_its_bound() {
        let mut lines = Lines::default();
        for _ in 0..LINE_BYTES_MAX / 65_536 {
            assert_eq!(lines.add(&[b'x'; 65_536]), Ok(()));
            assert_eq!(lines.next(), None);
        }
        assert_eq!(lines.add(b"x"), Err(TooLong));
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_are_the_same_lines(bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..600), step in 1_usize..70) {
            let mut whole: Vec<_> = bytes.split(|byte| *byte == b'\n').map(|line| line.trim_ascii().to_vec()).collect();
            // What follows the last line end is no line yet.
            whole.pop();
            let (mut lines, mut read) = (Lines::default(), Vec::new());
            for piece in bytes.chunks(step) {
                lines.add(piece).unwrap();
                while let Some(line) = lines.next() {
                    read.push(line.to_vec());
                }
            }
            prop_assert_eq!(read, whole);
        }
    }
}
