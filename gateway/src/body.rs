//! Reads request bodies within three bounds: the bytes of a body, the time to read it, and the bytes of all bodies in memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use http_body_util::BodyExt;

use crate::problem::{Kind, Problem};
use crate::slots::{Holder, Slot, Slots};

/// The bytes that bodies may take in memory, of requests that are read, of requests that wait, of answers with a long result, or of
/// other long answers: all together, and of each holder.
pub(crate) struct BodyBudget {
    taken: Slots,
    most: (usize, usize),
}

/// A body with its share of the budget.
pub(crate) struct BodyBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) share: BodyShare,
}

/// A body's share of the memory for bodies; dropping it frees the bytes. Its owner drops it when the parsed body is no longer
/// in memory, or when the limits of waiting requests or of accepted decisions count it; an answer's share is dropped with the written
/// answer.
#[derive(Default)]
pub(crate) struct BodyShare {
    slot: Option<Slot>,
}

impl BodyShare {
    pub(crate) const fn is_none(&self) -> bool {
        self.slot.is_none()
    }
}

/// The bytes of an answer, with their share. The connection drops them when they are written.
pub(crate) struct AnswerBytes {
    pub(crate) bytes: Bytes,
    pub(crate) _share: Arc<BodyShare>,
}

impl AsRef<[u8]> for AnswerBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: usize, each_max: usize) -> Self {
        Self { taken: Slots::default(), most: (bytes_max, each_max) }
    }

    pub(crate) async fn read(
        &self,
        holder: Holder,
        body: Body,
        time_max: Duration,
    ) -> Result<BodyBytes, Problem> {
        match tokio::time::timeout(time_max, self.read_all(holder, body)).await {
            Ok(read) => read,
            Err(_) => Err(Problem::of(
                Kind::BodyTimeout,
                format!("the body did not arrive within {} s", time_max.as_secs_f32()),
            )),
        }
    }

    async fn read_all(&self, holder: Holder, mut body: Body) -> Result<BodyBytes, Problem> {
        let (mut bytes, mut slot) = (Vec::new(), self.taken.none(holder));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Problem::of(Kind::BodyBroken, format!("the body cannot be read: {error}"))
            })?;
            // Trailers are ignored.
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > REQUEST_BYTES_MAX {
                let message = format!("the body is larger than {REQUEST_BYTES_MAX} bytes");
                return Err(Problem::of(Kind::BodyTooLarge, message));
            }
            if !slot.grow(data.len(), self.most) {
                let message = "too many bytes of requests are in memory; try again shortly";
                return Err(Problem::of(Kind::Busy, message));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(BodyBytes { bytes, share: BodyShare { slot: Some(slot) } })
    }

    /// A share of this size. Without room, the problem has this message.
    pub(crate) fn share(&self, holder: Holder, bytes: u64, busy: &str) -> Result<BodyShare, Problem> {
        let mut slot = self.taken.none(holder);
        if !slot.grow(usize::try_from(bytes).unwrap_or(usize::MAX), self.most) {
            return Err(Problem::of(Kind::Busy, busy));
        }
        Ok(BodyShare { slot: Some(slot) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::BODIES_BYTES_MAX;

    #[tokio::test]
    async fn bodies_are_bounded_each_and_together() {
        let budget = BodyBudget::new(BODIES_BYTES_MAX, BODIES_BYTES_MAX / 2);
        let read = |uid: u32, size: usize| {
            budget.read(Holder::User(uid), Body::from(vec![0; size]), Duration::from_secs(5))
        };
        assert_eq!(read(1, REQUEST_BYTES_MAX + 1).await.err().unwrap().code, "body_too_large");
        let mut held = Vec::new();
        for uid in [1, 2] {
            for _ in 0..BODIES_BYTES_MAX / REQUEST_BYTES_MAX / 2 {
                held.push(read(uid, REQUEST_BYTES_MAX).await.ok().unwrap());
            }
            assert_eq!(read(uid, 1).await.err().unwrap().code, "overloaded", "one holder has its half");
        }
        assert_eq!(read(3, 1).await.err().unwrap().code, "overloaded", "all is in use");
        held.pop();
        assert_eq!(read(3, 1).await.ok().unwrap().bytes, [0]);
        assert_eq!(read(1, 1).await.err().unwrap().code, "overloaded");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let budget = BodyBudget::new(BODIES_BYTES_MAX, BODIES_BYTES_MAX);
        let read = budget.read(Holder::User(1), Body::new(Never), Duration::from_secs(10)).await;
        assert_eq!(read.err().unwrap().status, 408);
    }

    /// A body that never yields data and never ends.
    struct Never;

    impl hyper::body::Body for Never {
        type Data = hyper::body::Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
}
