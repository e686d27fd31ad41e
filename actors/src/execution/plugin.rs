//! Calls of plugins: the child gets the script of its mode over the side channel.

use effectd_contracts::plugin::Script;
use effectd_contracts::{CallMode, Code, Failure, Phase};
use tokio::sync::mpsc;

use super::steps::Execution;
use crate::services::plugins;

impl Execution<'_> {
    /// The script that a call of this mode runs; `None` for a tool of no plugin, and for a call that runs none.
    pub(crate) async fn script(&self, mode: CallMode) -> Result<Option<mpsc::Receiver<Vec<u8>>>, Failure> {
        let Some(pinned) = self.action.state.gated().tool().definition().plugin.clone() else {
            return Ok(None);
        };
        let script = match mode {
            CallMode::Run => Script::Execute,
            CallMode::Verify => Script::Verify,
            CallMode::Rollback => Script::Rollback,
            CallMode::DryRun | CallMode::Probe | CallMode::Preview => return Ok(None),
        };
        let broken = |why: &str| Failure::new(Code::Internal, Phase::Dispatch, why);
        let (inspector, settings) =
            (self.services.files.inspector.clone(), self.services.settings.plugins.clone());
        let reading =
            tokio::task::spawn_blocking(move || plugins::script(&*inspector, &settings, (&pinned, script)));
        let pieces = reading.await.map_err(|_| broken("the package could not be read"))??;
        let (to, receiver) = mpsc::channel(pieces.len());
        for piece in pieces {
            to.try_send(piece).map_err(|_| broken("the script does not fit"))?;
        }
        Ok(Some(receiver))
    }
}
