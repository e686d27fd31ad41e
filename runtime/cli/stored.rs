//! What is done on the store itself where no daemon runs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_actors::held::entries;
use effectd_actors::{Answer, Done, decisions};
use effectd_bus::{Store, embedded};
use effectd_contracts::{ActionId, SystemClock, Topic};
use effectd_gateway::problem::Problem;
use effectd_gateway::views::{ActionView, State as Standing, unknown, withdrawal};
use tokio::time::Instant;

use super::Common;
use super::backend::{Trouble, WAIT_MAX, WAIT_STEP, client_state, say_direct, socket};
use crate::client::{Client, ClientError, Told};
use crate::config::Config;
use crate::runtime::Runtime;
use crate::state::State;

/// How a runtime in this process is set up: as the daemon of this state directory would be.
pub(super) fn direct_config(common: &Common, state: &Path) -> Result<Config, Trouble> {
    let mut config = Config::embedded(state)?;
    config.seed_demo = false;
    common.settings(Some(state))?.apply(&mut config);
    Ok(config)
}

/// The store of a state directory that is there and that nobody else uses.
pub(super) fn open(common: &Common, state: &Path) -> Result<(State, Box<dyn Store>), Trouble> {
    let state = State::existing(state)?;
    let config = direct_config(common, state.path())?.store.of(state.path());
    let store = embedded::open(config, Arc::new(SystemClock)).map_err(crate::error::Error::from)?;
    Ok((state, Box::new(store)))
}

/// How an action stands, by the store of a state directory that no daemon uses.
pub(super) async fn stored(common: &Common, state: &Path, action: &ActionId) -> Result<Told, Trouble> {
    let (_, store) = open(common, state)?;
    let told = look(&*store, action).await.map_err(crate::error::Error::from)?;
    Ok(told)
}

async fn look(store: &dyn Store, action: &ActionId) -> Result<Told, effectd_bus::StoreError> {
    if let Some(found) = store.receipt_of(action)? {
        let done = Done {
            receipt: Arc::new(found.parse()?),
            before: true,
            result: None,
        };
        return Ok(Told::View(ActionView::done(action.clone(), &done)));
    }
    if let Some(hold) = entries::hold_of(store, action)? {
        return Ok(Told::View(match hold.value.decided() {
            None => ActionView::held(action.clone(), &hold.value.told()),
            Some(_) => ActionView::accepted(action.clone()),
        }));
    }
    let found = decisions::published(store, action)?;
    let groups = store.groups(&Topic::ActionDecision.into()).await?;
    // A decision that no pipeline has looked at yet has no group to be settled by.
    let open = found.is_some_and(|found| groups.iter().all(|group| group.committed <= found.offset));
    Ok(if open {
        Told::View(ActionView::accepted(action.clone()))
    } else {
        Told::Problem(unknown(action))
    })
}

/// Withdraws an action in a state directory that no daemon uses.
pub(super) async fn cancelled(common: &Common, state: &Path, action: &ActionId) -> Result<Told, Trouble> {
    State::existing(state)?;
    let withdrawn = Runtime::cancel_stored(direct_config(common, state)?, action).await?;
    Ok(match withdrawn {
        Ok(withdrawn) => withdrawal(action, &withdrawn).map_or_else(Told::Problem, Told::View),
        Err(failure) => Told::Problem(Problem::failed(&failure).about(action)),
    })
}

/// Waits until an action has ended.
pub(super) async fn wait_for(common: &Common, action: &ActionId, wait: Duration) -> Result<Told, Trouble> {
    let state = client_state(common);
    let socket = socket(common, &state)?;
    let mut client = Client::new(&socket);
    let end = Instant::now() + wait.min(WAIT_MAX);
    loop {
        let step = (end - Instant::now()).min(WAIT_STEP);
        match client.wait(action, step).await {
            Ok(Told::View(view)) if view.state != Standing::Done && Instant::now() < end => {}
            Err(ClientError::NoDaemon(_)) => break,
            told => return Ok(told?),
        }
    }
    say_direct(common, &socket, &state)?;
    // Nobody but us can end it: the runtime is started here, and carries out what is on its bus.
    let stored = stored(common, &state, action).await?;
    if !matches!(&stored, Told::View(view) if view.state == Standing::Accepted) {
        return Ok(stored);
    }
    let runtime = Runtime::start(direct_config(common, &state)?).await?;
    let told = match tokio::time::timeout_at(end, runtime.pipeline().wait(action)).await {
        Ok(Ok(Answer::Done(done))) => Told::View(ActionView::done(action.clone(), &done)),
        Ok(Ok(Answer::Held(held))) => Told::View(ActionView::held(action.clone(), &held)),
        Ok(Ok(Answer::Refused(failure)) | Err(failure)) => {
            Told::Problem(Problem::failed(&failure).about(action))
        }
        Err(_) => stored,
    };
    runtime.stop().await;
    Ok(told)
}

/// Who has the store: the daemon, or, where none runs, this process.
pub(super) enum Keeper {
    Daemon(Client),
    Direct { store: Box<dyn Store> },
}

impl Keeper {
    /// The daemon if one runs; otherwise the store itself, and says so.
    pub(super) async fn reach(common: &Common) -> Result<Self, Trouble> {
        let path = client_state(common);
        let socket = socket(common, &path)?;
        let mut client = Client::new(&socket);
        match client.is_there().await {
            Err(ClientError::NoDaemon(_)) => {
                say_direct(common, &socket, &path)?;
                let (_, store) = open(common, &path)?;
                Ok(Keeper::Direct { store })
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Keeper::Daemon(client)),
        }
    }

    /// Asks the daemon at this path, or does the same here.
    pub(super) async fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        method: hyper::Method,
        path: &str,
        directly: impl FnOnce(&dyn Store) -> Result<T, effectd_bus::StoreError>,
    ) -> Result<T, Trouble> {
        match self {
            Keeper::Daemon(client) => client.call(method, path, "").await?.map_err(Trouble::Refused),
            Keeper::Direct { store } => Ok(directly(&**store).map_err(crate::error::Error::from)?),
        }
    }

    pub(super) fn close(self) -> Result<(), Trouble> {
        if let Keeper::Direct { store } = self {
            store.close().map_err(crate::error::Error::from)?;
        }
        Ok(())
    }
}
