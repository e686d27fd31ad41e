//! How a program configures the effectd that it embeds.

use std::path::PathBuf;
use std::sync::Arc;

use effectd_contracts::{Clock, Principal};

use crate::effectd::Effectd;
use crate::error::{Error, chain};
use crate::host::in_process::Running;
use crate::settings::config::Config;
use crate::settings::{Overrides, Settings};
use crate::tool_registry::Tools;

/// Configures an [`Effectd`]; made by [`Effectd::builder`].
pub struct EffectdBuilder {
    state: PathBuf,
    policy_dir: Option<PathBuf>,
    tools: Option<Tools>,
    principal: Option<Principal>,
    clock: Option<Arc<dyn Clock>>,
    overrides: Overrides,
}

impl Effectd {
    /// Configures an effectd that keeps its data in the directory `state`, which is created if it is missing.
    pub fn builder(state: impl Into<PathBuf>) -> EffectdBuilder {
        EffectdBuilder {
            state: state.into(),
            policy_dir: None,
            tools: None,
            principal: None,
            clock: None,
            overrides: Overrides::default(),
        }
    }
}

impl EffectdBuilder {
    /// The directory of the policy; by default `policy` in the state directory. Without a policy, `start` fails.
    ///
    /// The commands of the program `effectd` know only a policy in the state directory: those that need a policy refuse a state
    /// without one, and a backup does not contain a policy that is elsewhere.
    #[must_use]
    pub fn policy_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.policy_dir = Some(directory.into());
        self
    }

    /// The program's own tools; by default those given to [`crate::init`]. They must be the same.
    #[must_use]
    pub fn tools(mut self, tools: Tools) -> Self {
        self.tools = Some(tools);
        self
    }

    /// The principal of every request; by default the user that this process runs as.
    #[must_use]
    pub fn principal(mut self, principal: Principal) -> Self {
        self.principal = Some(principal);
        self
    }

    /// The clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Changes a setting, such as `pipeline.in_flight_max`; `effectd config show` lists all settings. The configuration file and
    /// the environment are not read.
    #[must_use]
    pub fn setting(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.overrides.flags.push((key.into(), value.to_string()));
        self
    }

    /// Starts effectd, and continues the actions that an earlier process left unfinished.
    ///
    /// The sandbox is tested first: if this machine cannot confine tools, nothing is created or changed.
    pub async fn start(self) -> Result<Effectd, Error> {
        let settings = Settings::load(None, &self.overrides);
        let settings = settings.map_err(|error| Error::Request(chain(&error)))?;
        let mut config = Config::embedded(&self.state)?;
        settings.apply(&mut config);
        config.seed_demo = false;
        config.policy_dir = self.policy_dir;
        if let Some(tools) = self.tools {
            config.tools = tools;
        }
        if let Some(principal) = self.principal {
            config.principal = principal;
        }
        if let Some(clock) = self.clock {
            config.clock = clock;
        }
        let (running, client) = Running::start(config, &settings).await?;
        Ok(Effectd::new(running, client))
    }
}
