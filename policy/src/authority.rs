//! Authority: who may approve, refuse and grant. Nobody decides about their own requests, unless the policy names no approvers.

use effectd_contracts::{Authority, Principal, SpaceId, SubjectId};

use crate::decision::Reason;
use crate::document::{OrgRole, PrincipalRole};
use crate::glob::any_matches;
use crate::policy::Policy;

/// Who wants to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    pub principal: Principal,
    /// Whether the principal is root or the runtime's own user; both can read the runtime's state anyway.
    pub operator: bool,
}

impl Policy {
    /// Whether the policy names approvers, for everything or for this organisation. If it names none, operators decide, and
    /// receipts say `single_user`.
    pub fn names_approvers(&self, org: Option<&str>) -> bool {
        let mut principals = self.tables().principals.iter();
        principals.any(|(_, entry)| entry.has_role(PrincipalRole::Approver) || entry.administers(org))
    }

    /// Whether the principal may act for the subject.
    pub fn speaks_for(&self, principal: &Principal, subject: &SubjectId) -> bool {
        let mut entries = self.tables().principals.matching(principal.as_str());
        entries.any(|entry| entry.is_planner() && any_matches(&entry.subjects, subject.as_str()))
    }

    pub fn org_of(&self, space: &SpaceId) -> Option<&str> {
        self.tables().spaces.get(space)?.org.as_deref()
    }

    /// The organisations, in order of their names.
    pub fn orgs(&self) -> Vec<&str> {
        self.tables().org_modes.owners()
    }

    /// The principals, or patterns of principals, that the policy makes members of an organisation, with their roles.
    pub fn members(&self, org: &str) -> impl Iterator<Item = (&str, OrgRole)> {
        self.tables().principals.iter().filter_map(move |(name, entry)| Some((name, *entry.orgs.get(org)?)))
    }

    /// The highest role of a principal in an organisation.
    pub fn org_role(&self, principal: &Principal, org: &str) -> Option<OrgRole> {
        let entries = self.tables().principals.matching(principal.as_str());
        entries.filter_map(|entry| entry.orgs.get(org)).max().copied()
    }

    /// Whether the principal has the role, or administers the organisation.
    fn has_role(&self, principal: &Principal, least: PrincipalRole, org: Option<&str>) -> bool {
        let mut entries = self.tables().principals.matching(principal.as_str());
        entries.any(|entry| entry.has_role(least) || entry.administers(org))
    }

    /// Checks that `by` may decide about requests of this subject in a space of this organisation. Returns the authority for the
    /// receipt.
    pub fn may_decide(
        &self,
        by: &Decider,
        subject: &SubjectId,
        org: Option<&str>,
    ) -> Result<Authority, Reason> {
        self.may(by, PrincipalRole::Approver, Some(subject), org)
    }

    /// Checks that `by` may change which actions need an approval, in this organisation or everywhere.
    pub fn may_administer(&self, by: &Decider, org: Option<&str>) -> Result<Authority, Reason> {
        self.may(by, PrincipalRole::Admin, None, org)
    }

    /// Whether `by` may read the receipts of everybody, and their events.
    pub fn may_learn(&self, by: &Decider) -> bool {
        self.may_operate(by, PrincipalRole::Learner)
    }

    /// Whether `by` may do this part of an operator's work. Who has any part may also look, and who may look may learn.
    pub fn may_operate(&self, by: &Decider, part: PrincipalRole) -> bool {
        let parts = [PrincipalRole::Look, PrincipalRole::Operate, PrincipalRole::Erase];
        let any = matches!(part, PrincipalRole::Look | PrincipalRole::Learner);
        let mut entries = self.tables().principals.matching(by.principal.as_str());
        by.operator
            || entries
                .any(|entry| entry.roles.iter().any(|role| *role == part || (any && parts.contains(role))))
    }

    /// Whether `by` may see the pending approvals of this organisation, or of all.
    pub fn may_view_approvals(&self, by: &Decider, org: Option<&str>) -> bool {
        by.operator || self.has_role(&by.principal, PrincipalRole::Approver, org)
    }

    fn may(
        &self,
        by: &Decider,
        least: PrincipalRole,
        subject: Option<&SubjectId>,
        org: Option<&str>,
    ) -> Result<Authority, Reason> {
        let who = &by.principal;
        if !self.names_approvers(org) {
            return if by.operator {
                Ok(Authority::SingleUser)
            } else {
                let text = format!("{who} may not decide: the policy names no approvers");
                let change = "add roles = [\"approver\"] to a principal, or ask effectd's operator";
                Err(Reason::new("no_approvers", text, change))
            };
        }
        if !self.has_role(who, least, org) {
            let role = least.as_str();
            let text = format!("{who} is no {role}");
            let change = format!("add roles = [\"{role}\"] to the principal, or ask somebody with this role");
            return Err(Reason::new("role_missing", text, change));
        }
        match subject {
            Some(subject) if self.speaks_for(who, subject) => {
                let text = format!(
                    "{who} may act on behalf of {subject}, and nobody decides about their own requests"
                );
                let change = "ask another approver, or remove the subject from the principal's subjects";
                Err(Reason::new("own_request", text, change))
            }
            Some(_) | None => Ok(Authority::Separate),
        }
    }
}
