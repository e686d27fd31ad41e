//! Authority: who may approve, refuse and grant. Nobody decides about their own requests, unless the policy names no approvers.

use effectd_contracts::{Authority, OrgId, Principal, SpaceId, SubjectId, TokenKind};

use crate::decision::Reason;
use crate::document::{OrgRole, PrincipalRole};
use crate::glob::any_matches;
use crate::policy::Policy;
use crate::tables;

/// Who wants to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decider {
    pub principal: Principal,
    /// Whether the principal is root or the runtime's own user; both can read the runtime's state anyway.
    pub operator: bool,
    /// What its token is for; `None` for a user of this machine.
    pub kind: Option<TokenKind>,
    /// The organisation of its token, which acts in no other; `None` for a user of this machine.
    pub org: Option<OrgId>,
    /// The values of a JWT's claim, for which the policy has roles.
    pub claims: Vec<String>,
}

impl Decider {
    /// A user of this machine.
    pub fn local(principal: Principal, operator: bool) -> Self {
        Self { principal, operator, kind: None, org: None, claims: Vec::new() }
    }

    /// Whether it may act in this organisation at all, whatever its roles.
    pub fn reaches(&self, org: Option<&str>) -> bool {
        self.org.as_ref().is_none_or(|own| org == Some(own.as_str()))
    }

    /// Whether its token is for a person. What no person holds decides nothing, whatever its roles.
    fn is_person(&self) -> bool {
        match self.kind {
            None | Some(TokenKind::User) => true,
            Some(TokenKind::Sandbox | TokenKind::Service) => false,
        }
    }
}

impl Policy {
    /// Whether the policy names approvers, for everything or for this organisation. If it names none, operators decide, and
    /// receipts say `single_user`.
    pub fn names_approvers(&self, org: Option<&str>) -> bool {
        let tables = self.tables();
        let principals = tables.principals.iter().map(|(_, entry)| entry);
        let mut entries = principals.chain(tables.claims.values());
        entries.any(|entry| entry.has_role(PrincipalRole::Approver) || entry.administers(org))
    }

    /// Whether the principal may act for the subject.
    pub fn speaks_for(&self, principal: &Principal, subject: &SubjectId) -> bool {
        let mut entries = self.tables().principals.matching(principal.as_str());
        entries.any(|entry| entry.is_planner() && any_matches(&entry.subjects, subject.as_str()))
    }

    /// The subjects that the policy names and that the principal may act for, in order.
    pub fn subjects_of(&self, principal: &Principal) -> Vec<SubjectId> {
        let named = self.tables().subjects.keys().filter_map(|name| SubjectId::new(name).ok());
        let mut own: Vec<_> = named.filter(|subject| self.speaks_for(principal, subject)).collect();
        own.sort();
        own
    }

    /// The spaces that a subject sees, in order.
    pub fn spaces_shown_to(&self, subject: &SubjectId) -> Vec<SpaceId> {
        let (tables, name) = (self.tables(), subject.as_str());
        let Some(holder) = tables.subjects.get(name) else { return Vec::new() };
        let seen = tables.spaces.iter().filter(|(_, space)| space.visible(name, holder));
        seen.map(|(id, _)| id.clone()).collect()
    }

    pub fn org_of(&self, space: &SpaceId) -> Option<&str> {
        self.tables().spaces.get(space)?.org.as_deref()
    }

    /// Whether questions about actions in a space may show parameters and diffs in services of others.
    pub fn lets_contents_leave(&self, space: &SpaceId) -> bool {
        self.tables().spaces.get(space).is_some_and(|space| space.contents_may_leave)
    }

    /// The spaces of an organisation.
    pub fn spaces_of(&self, org: &str) -> impl Iterator<Item = &SpaceId> {
        self.spaces().filter(move |space| self.org_of(space) == Some(org))
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

    /// The highest role of `by` in an organisation, also by its claims. A service is at most a member, a sandbox nothing.
    pub fn role_in(&self, by: &Decider, org: &str) -> Option<OrgRole> {
        if !by.reaches(Some(org)) {
            return None;
        }
        let role = self.entries(by).filter_map(|entry| entry.orgs.get(org)).max().copied();
        match by.kind {
            None | Some(TokenKind::User) => role,
            Some(TokenKind::Service) => role.map(|_| OrgRole::Member),
            Some(TokenKind::Sandbox) => None,
        }
    }

    /// The entries that give `by` its roles.
    fn entries<'a>(&'a self, by: &'a Decider) -> impl Iterator<Item = &'a tables::Principal> {
        let tables = self.tables();
        let claims = by.claims.iter().filter_map(|value| tables.claims.get(value));
        tables.principals.matching(by.principal.as_str()).chain(claims)
    }

    /// Whether `by` is a person who has the role, or administers the organisation.
    fn has_role(&self, by: &Decider, least: PrincipalRole, org: Option<&str>) -> bool {
        by.is_person() && self.entries(by).any(|entry| entry.has_role(least) || entry.administers(org))
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

    /// Whether `by` may do this part of an operator's work. Who has any part may also look, and who may look may learn. A service
    /// only looks and learns, a sandbox does neither, and no token erases.
    pub fn may_operate(&self, by: &Decider, part: PrincipalRole) -> bool {
        let parts = [PrincipalRole::Look, PrincipalRole::Operate, PrincipalRole::Erase];
        let any = matches!(part, PrincipalRole::Look | PrincipalRole::Learner);
        let fits = match by.kind {
            None => true,
            Some(TokenKind::User) => part != PrincipalRole::Erase,
            Some(TokenKind::Service) => any,
            Some(TokenKind::Sandbox) => false,
        };
        let gives = |role: &PrincipalRole| *role == part || (any && parts.contains(role));
        by.operator || (fits && self.entries(by).any(|entry| entry.roles.iter().any(gives)))
    }

    /// Whether `by` may do this part of an operator's work on what belongs to this organisation.
    pub fn may_operate_in(&self, by: &Decider, part: PrincipalRole, org: Option<&str>) -> bool {
        by.reaches(org) && self.may_operate(by, part)
    }

    /// Whether `by` may see the pending approvals of this organisation, or of all.
    pub fn may_view_approvals(&self, by: &Decider, org: Option<&str>) -> bool {
        by.operator || (by.reaches(org) && self.has_role(by, PrincipalRole::Approver, org))
    }

    fn may(
        &self,
        by: &Decider,
        least: PrincipalRole,
        subject: Option<&SubjectId>,
        org: Option<&str>,
    ) -> Result<Authority, Reason> {
        let who = &by.principal;
        if !by.is_person() {
            let text = format!("{who} is no person's account, and decides nothing");
            return Err(Reason::new("not_a_person", text, "ask a person who may decide"));
        }
        // Without a subject and an organisation it is about the whole state, to which no organisation's role leads.
        let is_of_state = subject.is_none() && org.is_none();
        if !is_of_state && !by.reaches(org) {
            let text = format!("{who} has a token of another organisation");
            return Err(Reason::new("other_org", text, "ask somebody of this organisation"));
        }
        if !self.names_approvers(org) {
            return if by.operator {
                Ok(Authority::SingleUser)
            } else {
                let text = format!("{who} may not decide: the policy names no approvers");
                let change = "add roles = [\"approver\"] to a principal, or ask effectd's operator";
                Err(Reason::new("no_approvers", text, change))
            };
        }
        if !self.has_role(by, least, org) {
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
