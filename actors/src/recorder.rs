//! The last stage and the only way out: the receipt is written, then everybody is told.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Completion, Link, StoreError, StoredReceipt};
use effectd_contracts::{ActionId, Code, Failure, Phase, Receipt, ReceiptId};
use ractor::ActorProcessingErr;
use ractor::factory::{FactoryRef, Job, Worker, WorkerId};

use crate::action::{Action, Finished};
use crate::answers::{Answer, Done};
use crate::capture::{self, Captured};
use crate::limits::{BACKOFF_FIRST, COMMIT_TRIES};
use crate::messages::{Record, Refusal};
use crate::parts::Parts;
use crate::stage::PanicWatch;

pub(crate) struct Recorder {
    pub(crate) parts: Arc<Parts>,
}

impl Worker for Recorder {
    type Key = ();
    type Message = Record;
    type Arguments = ();
    type State = ();

    async fn pre_start(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Record>,
        (): (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: WorkerId,
        _: &FactoryRef<(), Record>,
        job: Job<(), Record>,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _watch = PanicWatch::new("recorder", &self.parts);
        match job.msg {
            Record::Ran(finished) => self.ran(*finished).await,
            Record::Refused(refusal) => self.refused(*refusal).await,
            Record::Before { action, receipt_id } => self.before(*action, receipt_id),
            Record::Unrecorded { action, failure } => self.unrecorded(*action, failure).await,
        }
        Ok(())
    }
}

impl Recorder {
    async fn ran(&self, action: Action<Finished>) {
        action.hop("recorder");
        let captured = capture::ran(&self.parts, &action);
        self.record(action.advance(|_| ()), captured).await;
    }

    async fn refused(&self, refusal: Refusal) {
        refusal.action.hop("recorder");
        let captured = capture::refused(&self.parts, &refusal);
        self.record(refusal.action, captured).await;
    }

    async fn record(&self, action: Action<()>, captured: Captured) {
        let Captured { receipt, completion } = captured;
        match self.commit(completion).await {
            Ok(()) => {
                self.count(&receipt);
                tracing::info!(parent: &action.ticket.span, trace_id = %receipt.trace_id, receipt_id = %receipt.receipt_id,
                    status = receipt.status.as_str(), code = receipt.error.as_ref().map(|failure| failure.code.as_str()),
                    total_ms = receipt.timing.total_ms.as_f64(), "receipt");
                self.tell(
                    action,
                    Answer::Done(Done {
                        receipt: Arc::new(receipt),
                        before: false,
                    }),
                );
            }
            Err(StoreError::AlreadyReceipted { .. }) => self.answer_from_store(action),
            Err(StoreError::StaleFence { .. }) => {
                // Another copy of the action took over; its receipt is the one that counts.
                tracing::info!(parent: &action.ticket.span, trace_id = %receipt.trace_id, "overtaken");
                action.ticket.settled();
            }
            Err(error) => {
                tracing::error!(parent: &action.ticket.span, trace_id = %receipt.trace_id, %error, "receipt not written");
                let waits_at_door = action.ticket.lease().is_none();
                if waits_at_door {
                    let message = format!("{error}; ask again with the same action id");
                    let failure = Failure::new(Code::StoreUnavailable, Phase::Record, message);
                    self.tell(action, Answer::Refused(failure));
                }
                // What came by the bus drops its ticket here: the delivery is given back and the action tried again.
            }
        }
    }

    async fn commit(&self, completion: Completion) -> Result<(), StoreError> {
        let mut pause = BACKOFF_FIRST;
        for _ in 1..COMMIT_TRIES {
            match self.parts.store.commit(completion.clone()).await {
                Err(StoreError::Unavailable { .. } | StoreError::Overloaded { .. } | StoreError::Full) => {}
                answer => return answer.map(|_| ()),
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
        }
        self.parts.store.commit(completion).await.map(|_| ())
    }

    /// The action was done before: its id is linked to the receipt that exists, and that is the answer.
    fn before(&self, action: Action<()>, receipt_id: ReceiptId) {
        action.hop("recorder");
        let known = self.parts.store.receipt(&receipt_id);
        let Some(receipt) = read(known) else {
            tracing::error!(parent: &action.ticket.span, %receipt_id, "a linked receipt cannot be read");
            return;
        };
        if receipt.action_id != action.ticket.action_id {
            // Rides in the next block; should it be lost, the key leads to the same receipt again.
            drop(self.parts.store.link(Link {
                action_id: action.ticket.action_id.clone(),
                action_digest: action.ticket.digest,
                receipt_id,
                leases: action.ticket.lease().into_iter().collect(),
            }));
        } else if let Some(lease) = action.ticket.lease() {
            drop(self.parts.store.ack(lease));
        }
        self.parts
            .metrics
            .cached
            .with_label_values(&[receipt.tool_id.as_str()])
            .inc();
        self.tell(
            action,
            Answer::Done(Done {
                receipt: Arc::new(receipt),
                before: true,
            }),
        );
    }

    async fn unrecorded(&self, action: Action<()>, failure: Failure) {
        action.hop("recorder");
        if let Some(lease) = action.ticket.lease() {
            let ended = self
                .parts
                .store
                .term(lease, failure.code.as_str(), &failure.message)
                .await;
            if let Err(error) = ended {
                tracing::warn!(parent: &action.ticket.span, %error, "not set aside; it will come back");
                return;
            }
        }
        self.tell(action, Answer::Refused(failure));
    }

    fn answer_from_store(&self, action: Action<()>) {
        let known = self.parts.store.receipt_of(&action.ticket.action_id);
        match read(known) {
            Some(receipt) => self.tell(
                action,
                Answer::Done(Done {
                    receipt: Arc::new(receipt),
                    before: true,
                }),
            ),
            None => action.ticket.settled(),
        }
    }

    fn tell(&self, action: Action<()>, answer: Answer) {
        let id: ActionId = action.ticket.action_id.clone();
        action.ticket.settled();
        self.parts.answers.tell(&id, &answer);
    }

    fn count(&self, receipt: &Receipt) {
        let metrics = &self.parts.metrics;
        // A tool that does not exist has no series of its own: ids from outside must not make labels.
        let tool = if receipt.tool_version.is_some() {
            receipt.tool_id.as_str()
        } else {
            "unknown"
        };
        let outcome = serde_json::to_value(receipt.outcome).unwrap_or_default();
        metrics
            .actions
            .with_label_values(&[tool, outcome.as_str().unwrap_or("unknown")])
            .inc();
        metrics
            .cpu
            .with_label_values(&[tool])
            .inc_by(receipt.cost.cpu_ms.micros());
        let seconds = Duration::from_micros(receipt.timing.total_ms.micros()).as_secs_f64();
        metrics.duration.with_label_values(&[tool]).observe(seconds);
        if let Some(failure) = &receipt.error {
            metrics
                .failures
                .with_label_values(&[tool, failure.code.as_str()])
                .inc();
        }
    }
}

/// A stored receipt as a value; a store that cannot tell is logged and counts as none.
fn read(stored: Result<Option<StoredReceipt>, StoreError>) -> Option<Receipt> {
    let parsed = stored.and_then(|stored| stored.map(|stored| stored.parse()).transpose());
    parsed.unwrap_or_else(|error| {
        tracing::error!(%error, "a receipt cannot be read");
        None
    })
}
