//! The gateway's routes in this process, for the library and for commands when no daemon runs.

use std::sync::Arc;

use effectd_contracts::{Code, Failure, Phase};
use effectd_gateway::client::Client;
use effectd_gateway::problem::{Kind, Problem};
use effectd_gateway::{Gateway, SharedSettings, Stage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::runtime::{Depth, OpenState, Runtime};
use crate::error::Error;
use crate::settings::Settings;
use crate::settings::config::Config;

/// A runtime with its routes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) runtime: Arc<Runtime>,
    health: HealthTask,
    /// The routes close when this is dropped.
    _stage: watch::Sender<Stage>,
}

impl Running {
    pub(crate) async fn start(config: Config, settings: &Settings) -> Result<(Self, Client), Error> {
        let (principal, interactive) = (config.principal.clone(), config.interactive);
        let (stage, open) = watch::channel(Stage::Open);
        let runtime = Arc::new(Runtime::start(config).await?);
        let gateway = runtime.gateway(SharedSettings::new(settings.values().door.clone()), open)?;
        let running = Self { runtime, health: HealthTask(gateway.watch_health()), _stage: stage };
        Ok((running, gateway.client(principal, interactive)))
    }

    /// [`Running::stop`] for a runtime that others still use: the runtime keeps its sandbox.
    pub(crate) async fn wind_down(&self) -> bool {
        self.health.0.abort();
        self.runtime.wind_down(std::future::pending()).await
    }

    /// Finishes running actions and closes the store. Returns whether everything was finished.
    pub(crate) async fn stop(mut self) -> bool {
        self.health.0.abort();
        // An aborted task releases the store only when it is joined.
        let _ = (&mut self.health.0).await;
        match Arc::try_unwrap(self.runtime) {
            Ok(runtime) => runtime.stop().await,
            Err(runtime) => runtime.wind_down(std::future::pending()).await,
        }
    }
}

/// The gateway's health task. Dropping this aborts it.
#[derive(Debug)]
struct HealthTask(JoinHandle<()>);

impl Drop for HealthTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An open state with its routes but without a pipeline: it carries out nothing.
pub(crate) struct Idle {
    state: Arc<OpenState>,
    /// The routes close when this is dropped.
    _stage: watch::Sender<Stage>,
}

impl Idle {
    pub(crate) fn open(config: Config, settings: &Settings, depth: Depth) -> Result<(Self, Client), Error> {
        let (principal, interactive) = (config.principal.clone(), config.interactive);
        let (stage, open) = watch::channel(Stage::Open);
        let state = Arc::new(OpenState::open(config, depth)?);
        let dial = SharedSettings::new(settings.values().door.clone());
        let gateway = Gateway::new(state.clone(), None, dial, open)?;
        let idle = Self { state, _stage: stage };
        Ok((idle, gateway.client(principal, interactive)))
    }

    pub(crate) fn close(self) -> Result<(), Error> {
        Ok(self.state.services.store.close()?)
    }
}

/// The problems of requests that the routes cannot read.
const UNREADABLE: [Kind; 4] = [Kind::BodyTooLarge, Kind::BodyBroken, Kind::HeaderInvalid, Kind::QueryInvalid];

/// A problem from the routes, as a failure.
pub(crate) fn failure_of(problem: &Problem) -> Failure {
    let code = problem.code.parse().unwrap_or_else(|_| {
        if UNREADABLE.iter().any(|kind| kind.code() == problem.code) {
            Code::Malformed
        } else {
            Code::Internal
        }
    });
    let phase = problem.phase.unwrap_or(Phase::Accept);
    let mut failure = Failure::new(code, phase, problem.detail.clone());
    failure.retryable = problem.retryable;
    failure.gate = problem.gate;
    failure.retry_after_ms = problem.retry_after_ms;
    failure
}
