//! What an operator says about a tool instead of its author, as arguments of commands.

use effectd_contracts::{RiskLevel, RiskTier, ToolOverlay};

use super::eprint_line;

#[derive(Debug, clap::Args)]
pub(super) struct Says {
    /// Its title
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Its description
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Its tier, R0 to R4, if higher than its own; R2 of a server's tool says that another call can make up for it
    #[arg(long, value_name = "TIER", value_parser = tier)]
    tier: Option<RiskTier>,
}

fn tier(text: &str) -> Result<RiskTier, String> {
    let known = RiskTier::ALL.into_iter().find(|tier| tier.as_str() == text);
    known.ok_or_else(|| format!("a tier is {}", RiskTier::ALL.map(RiskTier::as_str).join(", ")))
}

impl Says {
    /// What is given, and what was said before and is not given. Nothing at all restores the words of `author`.
    pub(super) fn beside(self, was: ToolOverlay, risk: Option<RiskLevel>, author: &str) -> ToolOverlay {
        let Self { title, description, tier } = self;
        let restores = title.is_none() && description.is_none() && risk.is_none() && tier.is_none();
        let words = |new: Option<String>, old: &Option<String>| {
            new.or_else(|| old.clone().filter(|_| !restores)).filter(|words| !words.is_empty())
        };
        let says = ToolOverlay {
            title: words(title, &was.title),
            description: words(description, &was.description),
            risk: risk.or(was.risk.filter(|_| !restores)),
            tier: tier.or(was.tier.filter(|_| !restores)),
        };
        let level = |risk: Option<RiskLevel>| risk.map(|risk| risk.as_str().to_owned());
        let tier = |tier: Option<RiskTier>| tier.map(|tier| tier.as_str().to_owned());
        for (what, old, new) in [
            ("title", was.title, says.title.clone()),
            ("description", was.description, says.description.clone()),
            ("risk", level(was.risk), level(says.risk)),
            ("tier", tier(was.tier), tier(says.tier)),
        ] {
            if old != new {
                let word = |said: Option<String>| said.unwrap_or_else(|| author.to_owned());
                eprint_line(&format!("{what}: {} → {}", word(old), word(new)));
            }
        }
        says
    }
}
