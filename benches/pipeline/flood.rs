//! A noisy tenant: one subject asks for one action after another, and another floods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use effectd_actors::Pipeline;
use effectd_contracts::Outcome;

use super::{FLOODER, Figures, OTHER, exec, lanes, request};

/// The latencies of a subject that asks for one action after another.
pub(crate) async fn visits(pipeline: &Arc<Pipeline>, word: String) -> Figures {
    let (pipeline, word) = (pipeline.clone(), Arc::new(word));
    lanes(1, move |_, n| {
        let asked = request(OTHER, &format!("{word}-{n}"), "other");
        let pipeline = pipeline.clone();
        async move { exec(&pipeline, asked, Outcome::Executed).await }
    })
    .await
}

/// The subject that floods.
pub(crate) struct Flood {
    over: Arc<AtomicBool>,
    lanes: Vec<tokio::task::JoinHandle<usize>>,
}

impl Flood {
    pub(crate) fn begin(pipeline: &Arc<Pipeline>, turn: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let lane = |lane: usize| {
            let (pipeline, over) = (pipeline.clone(), over.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return n;
                    }
                    let action = format!("flood-{turn}-{lane}-{n}");
                    let asked = request(FLOODER, &action, &format!("flood-{lane}"));
                    exec(&pipeline, asked, Outcome::Executed).await;
                }
                0
            })
        };
        let lanes = (0..128).map(lane).collect();
        Self { over, lanes }
    }

    /// Ends the flood, and returns its number of actions.
    pub(crate) async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let mut ended = 0;
        for lane in self.lanes {
            ended += lane.await.expect("a lane of the flood");
        }
        ended
    }
}
