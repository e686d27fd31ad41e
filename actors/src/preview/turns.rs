//! Whose turn it is to be tried out. Previews take a sandbox and seconds: without a bound of their own they would keep others from
//! having their actions done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use effectd_contracts::{Code, Failure, Phase, SubjectId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::limits::{OVERLOAD_RETRY, PREVIEW_WAIT_MAX, PREVIEWS_MAX, PREVIEWS_SUBJECT_MAX};

/// Turns for everybody, and fewer for one subject: the others always find some.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Semaphore,
    subjects: Mutex<HashMap<SubjectId, Arc<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    _of_all: SemaphorePermit<'t>,
    _of_subject: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Semaphore::new(PREVIEWS_MAX.get()),
            subjects: Mutex::default(),
        }
    }
}

impl Turns {
    /// Waits for a turn, but not for long.
    pub(crate) async fn take(&self, subject: &SubjectId) -> Result<Turn<'_>, Failure> {
        let own = self.of_subject(subject);
        let taking = async {
            let of_subject = own.acquire_owned().await.ok()?;
            let of_all = self.all.acquire().await.ok()?;
            Some(Turn {
                _of_all: of_all,
                _of_subject: of_subject,
            })
        };
        match tokio::time::timeout(PREVIEW_WAIT_MAX.get(), taking).await {
            Ok(Some(turn)) => Ok(turn),
            Ok(None) | Err(_) => Err(overloaded()),
        }
    }

    fn of_subject(&self, subject: &SubjectId) -> Arc<Semaphore> {
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has or waits for a turn holds on to theirs: there are never more than actions on their way.
        subjects.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = || Arc::new(Semaphore::new(PREVIEWS_SUBJECT_MAX.get()));
        subjects.entry(subject.clone()).or_insert_with(turns).clone()
    }
}

fn overloaded() -> Failure {
    let message = "too many actions are being tried out at once; nothing was done";
    Failure::new(Code::Overloaded, Phase::Gate, message).retry_after(OVERLOAD_RETRY.get())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_subject_leaves_turns_for_the_others_and_who_waits_too_long_is_told_when_to_come_back() {
        let turns = Turns::default();
        let (one, other) = (
            "agent://one@a".parse().unwrap(),
            "agent://other@a".parse().unwrap(),
        );
        let mut taken = Vec::new();
        for _ in 0..PREVIEWS_SUBJECT_MAX.get() {
            taken.push(turns.take(&one).await.unwrap());
        }
        let refused = turns.take(&one).await.unwrap_err();
        assert_eq!(refused.code, Code::Overloaded);
        assert!(refused.retry_after_ms.is_some(), "{refused:?}");
        let others = turns.take(&other).await.unwrap();
        drop((others, taken));
        drop(turns.take(&one).await.unwrap());
        drop(turns.take(&other).await.unwrap());
        assert_eq!(turns.subjects.lock().unwrap().len(), 1);
    }
}
