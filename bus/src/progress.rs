//! How far long work has come, for whoever shows it to a person.

use std::fmt;
use std::sync::Arc;

type Hook = dyn Fn(&'static str, u64, u64) + Send + Sync;

/// Is told how far long work has come; by default, nobody is. Called often, from any thread, so it must be quick.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Hook>>);

impl Progress {
    /// The hook gets what is being done, how much of it is done, and how much there is: 0 if that is not known.
    pub fn new(hook: impl Fn(&'static str, u64, u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub fn at(&self, what: &'static str, done: u64, total: u64) {
        if let Some(hook) = &self.0 {
            hook(what, done, total);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}
