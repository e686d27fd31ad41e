//! What an operator says about a tool, instead of its author.

use effectd_contracts::{RiskTier, ToolOverlay};

use super::Definition;

/// An operator's words, and the author's, which they take the place of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlaid {
    pub says: ToolOverlay,
    pub(crate) description: String,
    pub(crate) risk_tier: Option<RiskTier>,
}

impl Definition {
    /// As the author describes the tool, with what the operator says instead. A tier is only raised.
    pub(crate) fn overlaid(&self, says: Option<&ToolOverlay>) -> Self {
        let mut new = self.clone();
        if let Some(was) = new.overlay.take() {
            (new.spec.description, new.spec.risk_tier) = (was.description, was.risk_tier);
        }
        if let Some(says) = says {
            let (description, risk_tier) = (new.spec.description.clone(), new.spec.risk_tier);
            let described = says.description.as_ref().unwrap_or(&description);
            new.spec.description =
                says.title.iter().chain([described]).map(String::as_str).collect::<Vec<_>>().join(". ");
            new.spec.risk_tier = risk_tier.max(says.tier);
            new.overlay = Some(Box::new(Overlaid { says: says.clone(), description, risk_tier }));
        }
        new
    }
}
