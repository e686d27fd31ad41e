//! The process that the crash tests kill: a runtime that prints its answers and what is on disk.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use effectd::contracts::{ActionRequest, Event, ExecutedData, Origin, Plan, Receipt, Topic};
use effectd::internal::{Config, Runtime};
use effectd_actors::{Answer, Incoming};
use effectd_bus::{DeadLetterOrigin, ReceiptQuery};
use effectd_contracts::signature::verify;
use serde_json::{Value, json};

use crate::place::SHORT_LEASE;

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) events: Vec<ExecutedData>,
    pub(crate) letters: Vec<Letter>,
    pub(crate) unsettled: u64,
    pub(crate) open_intents: usize,
    /// Receipts whose signature does not hold.
    pub(crate) forged: usize,
}

#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) action_id: Option<String>,
    pub(crate) receipt_id: Option<String>,
    pub(crate) code: String,
    pub(crate) attempts: u32,
}

impl Report {
    fn to_json(&self) -> Value {
        let letter =
            |letter: &Letter| json!([letter.action_id, letter.receipt_id, letter.code, letter.attempts]);
        json!([
            self.receipts,
            self.events,
            self.letters.iter().map(letter).collect::<Vec<_>>(),
            [self.unsettled, self.open_intents as u64, self.forged as u64],
        ])
    }

    pub(crate) fn from_json(value: Value) -> Self {
        type Letters = Vec<(Option<String>, Option<String>, String, u32)>;
        type All = (Vec<Receipt>, Vec<ExecutedData>, Letters, [u64; 3]);
        let (receipts, events, letters, counts): All = serde_json::from_value(value).unwrap();
        let letter =
            |(action_id, receipt_id, code, attempts)| Letter { action_id, receipt_id, code, attempts };
        Self {
            receipts,
            events,
            letters: letters.into_iter().map(letter).collect(),
            unsettled: counts[0],
            open_intents: counts[1] as usize,
            forged: counts[2] as usize,
        }
    }

    pub(crate) async fn of(runtime: &Runtime) -> Self {
        let store = runtime.store();
        let key = runtime.pipeline().services().identity.key().public_key();
        let mut report = Report::default();
        let mut query = ReceiptQuery::default();
        loop {
            let page = store.receipts(&query).unwrap();
            for stored in page.receipts {
                let receipt = stored.parse().unwrap();
                report.forged += usize::from(verify(&receipt, &key).is_err());
                report.receipts.push(receipt);
            }
            query.cursor = page.cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        let mut from = 0;
        loop {
            let page = store.read(&Topic::ActionExecuted.into(), from, 1_000).unwrap();
            if page.events.is_empty() {
                break;
            }
            from += page.events.len() as u64;
            for event in page.events {
                let event: Event<ExecutedData> = serde_json::from_slice(event.body.bytes().unwrap()).unwrap();
                report.events.push(event.data);
            }
        }
        let letters = store.letters(None, 0, 1_000).unwrap().letters;
        report.letters = letters
            .into_iter()
            .map(|letter| Letter {
                action_id: letter.action_id.map(|id| id.to_string()),
                receipt_id: match letter.origin {
                    DeadLetterOrigin::Completion { receipt_id } => Some(receipt_id.to_string()),
                    DeadLetterOrigin::Delivery { .. } => None,
                },
                code: letter.code,
                attempts: letter.attempts,
            })
            .collect();
        for group in store.groups(&Topic::ActionDecision.into()).await.unwrap() {
            report.unsettled += group.end - group.committed - group.acknowledged_ahead;
        }
        report.open_intents = store.open_intents(None, 100).await.unwrap().len();
        report
    }

    /// The one receipt of this action. Fails unless there is exactly one, with exactly one event that agrees with it.
    #[track_caller]
    pub(crate) fn the_receipt(&self, action: &str) -> &Receipt {
        let receipts: Vec<_> =
            self.receipts.iter().filter(|receipt| receipt.action_id.as_str() == action).collect();
        assert_eq!(receipts.len(), 1, "{action} has not one receipt: {self:#?}");
        let events: Vec<_> = self.events.iter().filter(|event| event.action_id.as_str() == action).collect();
        assert_eq!(events.len(), 1, "{action} has not one event: {self:#?}");
        let (receipt, event) = (receipts[0], events[0]);
        assert_eq!(
            (&event.receipt_id, event.status, event.outcome),
            (&receipt.receipt_id, receipt.status, receipt.outcome),
            "the event says something else than the receipt"
        );
        receipt
    }

    pub(crate) fn letters_of(&self, action: &str) -> Vec<&Letter> {
        let of = |letter: &&Letter| letter.action_id.as_deref() == Some(action);
        self.letters.iter().filter(of).collect()
    }

    #[track_caller]
    pub(crate) fn all_settled(&self) {
        assert_eq!((self.unsettled, self.open_intents, self.forged), (0, 0, 0), "{self:#?}");
        assert_eq!(self.receipts.len(), self.events.len(), "{self:#?}");
    }
}

/// `__child <mode> <folder> <requests>`
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [mode, folder, requests] = arguments.as_slice() else {
        panic!("__child <mode> <folder> <requests>, not {arguments:?}")
    };
    let requests: Vec<Value> = serde_json::from_str(requests).unwrap();
    // Silent, unless EFFECTD_LOG asks for more.
    effectd::internal::telemetry::start("off", effectd::internal::telemetry::LogForm::Text, false);
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    threads.block_on(work(mode, Path::new(folder), requests));
    ExitCode::SUCCESS
}

async fn work(mode: &str, folder: &Path, requests: Vec<Value>) {
    let mut config = Config::embedded(folder.join(".effectd")).unwrap();
    config.lease_ttl = SHORT_LEASE * 5;
    let runtime = Runtime::start(config).await.unwrap();
    say("started");
    let all = requests.into_iter().map(|request| ask(&runtime, mode, request));
    all_of(all.collect()).await;
    let report = Report::of(&runtime).await;
    say(&format!("report {}", report.to_json()));
    assert!(runtime.stop().await, "something was left over");
}

/// Waits for all of them concurrently.
pub(crate) async fn all_of(all: Vec<impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(move |context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

async fn ask(runtime: &Runtime, mode: &str, request: Value) {
    if mode == "plan" {
        return tell(runtime.pipeline().exec(planned(&request)).await);
    }
    if mode == "plan_ends" {
        // As below: nobody asks again.
        let id = planned(&request).request.action_id.clone();
        return tell(runtime.pipeline().wait(&id).await.unwrap());
    }
    let request: ActionRequest = serde_json::from_value(request).unwrap();
    tell(match mode {
        "exec" => runtime.exec(request).await,
        "submit" => {
            let ticket = runtime.submit(request).await.unwrap();
            say(&format!("accepted {}", ticket.action_id()));
            ticket.receipt().await.unwrap()
        }
        // Nobody asks again: an accepted action must end by itself.
        "wait" => runtime.pipeline().wait(&request.action_id).await.unwrap(),
        other => panic!("no mode {other}"),
    });
}

/// The action of a plan.
fn planned(plan: &Value) -> Incoming {
    let plan = Plan::parse(plan.to_string().as_bytes()).unwrap();
    let (request, contract) = plan.compile(None, None).unwrap();
    Incoming {
        request: Arc::new(request),
        principal: Config::embedded(".").unwrap().principal,
        origin: Origin::Plan,
        contract: Some(contract),
        interactive: false,
    }
}

fn tell(answer: Answer) {
    match answer {
        Answer::Done(done) => say(&format!("answer {}", serde_json::to_string(&*done.receipt).unwrap())),
        Answer::Held(held) => panic!("{held:?}"),
        Answer::Refused(failure) => panic!("{failure:?}"),
    }
}

pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}
