//! What a child says, understood. A child may say anything: whatever is not exactly an answer is garbage, and ends the call.

use crate::call::{Denial, DenialSource};
use crate::ending::Cause;
use crate::limits::{DENIAL_TEXT_BYTES_MAX, DENIALS_NAMED_MAX};
use crate::wire::{Kind, split, unpack_failure};

/// Room beside the answer for the child's own list of refused paths.
pub(crate) const NOTES_BYTES_MAX: usize = DENIALS_NAMED_MAX * (DENIAL_TEXT_BYTES_MAX * 6 + 128) + 64;

/// What a whole frame means. The notes that come with an answer are added to `told`.
pub(crate) fn understand(kind: Kind, payload: &[u8], output_max: usize, told: &mut Vec<Denial>) -> Cause {
    match kind {
        Kind::Reply => {
            let Some((notes, answer)) = split(payload) else {
                return Cause::Garbage;
            };
            if answer.len() > output_max {
                return Cause::OutputLimit;
            }
            let Ok(notes) = serde_json::from_slice::<Vec<Denial>>(notes) else {
                return Cause::Garbage;
            };
            // Whatever the child claims, it is the child's own word.
            let notes = notes.into_iter().take(DENIALS_NAMED_MAX);
            told.extend(notes.map(|note| Denial {
                source: DenialSource::Child,
                ..note
            }));
            Cause::Replied(answer.to_vec())
        }
        Kind::Panicked => Cause::Panicked,
        Kind::Unconfined => match unpack_failure(payload) {
            Some(failure) => Cause::NotNarrowed(format!("{:?}", failure.step)),
            None => Cause::Garbage,
        },
        Kind::Ready | Kind::Request | Kind::Piece => Cause::Garbage,
    }
}
