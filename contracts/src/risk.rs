//! Risk: how dangerous a tool is, how careful a space is, and which mode follows.

crate::wire_enum! {
    /// How much can go wrong. The policy decides by tier and band; a caller can only raise the tier.
    #[derive(Default)]
    pub enum RiskTier {
        /// Local, without side effects.
        #[default]
        R0 = "R0",
        /// Contained and undoable.
        R1 = "R1",
        /// Writes that can be reversed or compensated.
        R2 = "R2",
        /// Irreversible, far-reaching, or unknown.
        R3 = "R3",
        /// Destructive.
        R4 = "R4",
    }
}

impl RiskTier {
    /// The tier of something that nobody has classified.
    pub const UNKNOWN: RiskTier = RiskTier::R3;
}

crate::wire_enum! {
    /// What a tool does to the world, in one word.
    pub enum RiskLevel {
        /// Only reads.
        Read = "read",
        /// Changes something.
        Write = "write",
        /// Destroys something.
        Danger = "danger",
    }
}

crate::wire_enum! {
    /// How careful a space is.
    pub enum Band {
        /// The mode of the cascade applies as it is.
        Green = "GREEN",
        /// Writes need an approval.
        Amber = "AMBER",
        /// Nearly everything needs an approval.
        Red = "RED",
        /// Nothing is allowed.
        Black = "BLACK",
    }
}

crate::wire_enum! {
    /// The answer of the mode cascade. Later is stricter, so the stricter of two is their maximum.
    pub enum Mode {
        /// Go ahead.
        Allow = "allow",
        /// Ask a person.
        RequireApproval = "require_approval",
        /// Refuse.
        Deny = "deny",
    }
}

crate::wire_enum! {
    /// The level of the cascade that answered.
    pub enum ModeSource {
        /// The automation's own mode.
        AutomationOverride = "automation_override",
        /// The organisation's mode.
        OrgDefault = "org_default",
        /// The mode that follows from the risk.
        InferredDefault = "inferred_default",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_mode_is_the_greater_one() {
        assert_eq!(Mode::Allow.max(Mode::RequireApproval), Mode::RequireApproval);
        assert_eq!(Mode::Deny.max(Mode::RequireApproval), Mode::Deny);
    }
}
