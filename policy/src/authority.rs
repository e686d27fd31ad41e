//! Who may decide for people: approve, refuse, grant. Never whoever asks, unless there is nobody else.

use effectd_contracts::{Authority, Principal, SpaceId, SubjectId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::Reason;
use crate::policy::{Policy, any_matches};

/// What a principal may do beside what its subjects may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalRole {
    /// Submits for its subjects, and reads its own.
    Planner,
    /// Decides about what waits for a person, but never for a subject that it speaks for.
    Approver,
    /// Decides like an approver, and changes what is asked at all: grants of any scope, standing approvals.
    Admin,
}

/// Who wants to decide, as the door saw them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    pub principal: Principal,
    /// Root, or the user that the runtime runs as: whoever can read its state anyway.
    pub operator: bool,
}

impl Policy {
    /// Whether the policy names people who decide. If not, whoever runs effectd decides, and receipts say so.
    pub fn separates(&self) -> bool {
        self.tables()
            .principals
            .all()
            .any(|entry| entry.roles.iter().any(|role| *role >= PrincipalRole::Approver))
    }

    pub fn speaks_for(&self, principal: &Principal, subject: &SubjectId) -> bool {
        let mut entries = self.tables().principals.of(principal.as_str());
        entries.any(|entry| entry.is_planner() && any_matches(&entry.subjects, subject.as_str()))
    }

    pub fn org_of(&self, space: &SpaceId) -> Option<&str> {
        self.tables().spaces.get(space)?.org.as_deref()
    }

    fn has_role(&self, principal: &Principal, least: PrincipalRole) -> bool {
        let mut entries = self.tables().principals.of(principal.as_str());
        entries.any(|entry| entry.roles.iter().any(|role| *role >= least))
    }

    /// Whether this one may decide about requests of this subject, and with which authority.
    pub fn may_decide(&self, by: &Decider, subject: &SubjectId) -> Result<Authority, Reason> {
        self.may(by, PrincipalRole::Approver, Some(subject))
    }

    /// Whether this one may change what is asked at all.
    pub fn may_administer(&self, by: &Decider) -> Result<Authority, Reason> {
        self.may(by, PrincipalRole::Admin, None)
    }

    /// Whether this one may see what waits for people.
    pub fn may_look(&self, by: &Decider) -> bool {
        by.operator || self.has_role(&by.principal, PrincipalRole::Approver)
    }

    fn may(
        &self,
        by: &Decider,
        least: PrincipalRole,
        subject: Option<&SubjectId>,
    ) -> Result<Authority, Reason> {
        let who = &by.principal;
        if !self.separates() {
            return if by.operator {
                Ok(Authority::SingleUser)
            } else {
                let text = format!("{who} may not decide: the policy names no approvers");
                let change = "add roles = [\"approver\"] to a principal, or ask whoever runs effectd";
                Err(Reason::new("no_approvers", text, change))
            };
        }
        if !self.has_role(who, least) {
            let role = match least {
                PrincipalRole::Planner => "planner",
                PrincipalRole::Approver => "approver",
                PrincipalRole::Admin => "admin",
            };
            let text = format!("{who} is no {role}");
            let change = format!("add roles = [\"{role}\"] to the principal, or ask somebody who is");
            return Err(Reason::new("role_missing", text, change));
        }
        match subject {
            Some(subject) if self.speaks_for(who, subject) => {
                let text = format!("{who} speaks for {subject}, and nobody decides about their own requests");
                let change = "another approver decides, or the principal's subjects become fewer";
                Err(Reason::new("own_request", text, change))
            }
            Some(_) | None => Ok(Authority::Separate),
        }
    }
}
