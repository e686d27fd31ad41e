//! Authority: nobody decides about their own requests, unless the policy names no approvers.

use effectd_contracts::{Authority, Gate, OrgId, Principal, TokenKind};
use effectd_policy::{Decider, OrgRole, Policy, PrincipalRole};

use crate::harness::*;

fn by(name: &str, operator: bool) -> Decider {
    Decider::local(Principal::new(name).unwrap(), operator)
}

fn may(policy: &Policy, who: &Decider) -> Result<Authority, String> {
    let planner = subject("agent://planner");
    policy.may_decide(who, &planner, None).map_err(|reason| reason.code.into_owned())
}

#[test]
fn without_approvers_the_owner_decides_and_that_is_reported() {
    let policy = world_with("version = 1", "version = 1");
    assert!(!policy.names_approvers(None));
    assert_eq!(may(&policy, &by("user://alice", true)), Ok(Authority::SingleUser));
    assert_eq!(may(&policy, &by("user://alice", false)), Err("no_approvers".to_owned()));
    assert!(policy.may_administer(&by("user://root", true), None).is_ok());
}

#[test]
fn only_approvers_decide_and_never_for_their_own_subjects() {
    let people = "[principals.\"user://carol\"]\nsubjects = []\nroles = [\"approver\"]\n\n\
                  [principals.\"user://dave\"]\nsubjects = [\"agent://guest\"]\nroles = [\"planner\", \"admin\"]\n\n\
                  [principals.\"user://erin\"]\nsubjects = [\"agent://planner\"]\nroles = [\"planner\", \"admin\"]\n\n[roles.reader]";
    let policy = world_with("[roles.reader]", people);
    assert!(policy.names_approvers(None));
    // Running effectd is not a role.
    assert_eq!(may(&policy, &by("user://alice", true)), Err("role_missing".to_owned()));
    assert_eq!(may(&policy, &by("user://carol", false)), Ok(Authority::Separate));
    assert_eq!(may(&policy, &by("user://dave", false)), Ok(Authority::Separate));
    assert_eq!(may(&policy, &by("user://erin", false)), Err("own_request".to_owned()));
    assert!(policy.may_administer(&by("user://carol", false), None).is_err());
    assert!(policy.may_administer(&by("user://erin", false), None).is_ok());
    assert!(
        policy.may_view_approvals(&by("user://carol", false), None)
            && !policy.may_view_approvals(&by("user://alice", false), None)
    );
}

#[test]
fn who_is_no_planner_submits_for_nobody() {
    let policy =
        world_with("actors = [\"alice\", \"bob\"]", "actors = [\"alice\", \"bob\"]\nroles = [\"approver\"]");
    assert_denied(&decide(&policy, |_| ()), Gate::Rbac, "subject_not_allowed");
}

#[test]
fn a_learner_that_a_star_lets_submit_is_a_warning() {
    let warnings = |more: &str| {
        let lea = "[principals.\"user://lea\"]\nsubjects = []\nroles = [\"learner\"]";
        world_with("[roles.reader]", &format!("{lea}\n\n{more}[roles.reader]")).warnings()
    };
    assert!(warnings("").is_empty());
    let star = "[principals.\"user://*\"]\nsubjects = [\"agent://planner\"]\n";
    let found = warnings(&format!("{star}\n"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("user://lea may do more than read: the entry in policy.toml:"), "{found:?}");
    assert!(warnings(&format!("{star}roles = [\"look\"]\n\n")).is_empty());
}

#[test]
fn the_parts_of_an_operator_are_apart_and_each_may_look() {
    use PrincipalRole::{Erase, Learner, Look, Operate};
    for (role, parts) in [
        (Look, [true, false, false, true]),
        (Operate, [true, true, false, true]),
        (Erase, [true, false, true, true]),
        (Learner, [false, false, false, true]),
    ] {
        let roles = format!("subjects = []\nroles = [\"{}\"]", role.as_str());
        let person = format!("[principals.\"user://olga\"]\n{roles}\n\n[roles.reader]");
        let policy = world_with("[roles.reader]", &person);
        let olga = by("user://olga", false);
        let found = [Look, Operate, Erase, Learner].map(|part| policy.may_operate(&olga, part));
        assert_eq!(found, parts, "{role:?}");
        assert!(!policy.names_approvers(None) && !policy.may_view_approvals(&olga, None));
        assert!(may(&policy, &olga).is_err() && policy.may_administer(&olga, None).is_err(), "{role:?}");
        assert!(
            !policy.may_operate(&by("user://alice", false), role)
                && policy.may_operate(&by("user://root", true), role)
        );
    }
}

#[test]
fn a_learner_reads_and_neither_decides_nor_submits() {
    let person = "[principals.\"user://lea\"]\nsubjects = []\nroles = [\"learner\"]\n\n[roles.reader]";
    let policy = world_with("[roles.reader]", person);
    let lea = by("user://lea", false);
    let learns = |by: &Decider| policy.may_operate(by, PrincipalRole::Learner);
    assert!(learns(&lea) && learns(&by("user://root", true)) && !learns(&by("user://alice", false)));
    // A learner is no approver: with learners alone, the policy still has one user.
    assert!(
        !policy.names_approvers(None)
            && !policy.may_view_approvals(&lea, None)
            && may(&policy, &lea).is_err()
    );
    let policy =
        world_with("actors = [\"alice\", \"bob\"]", "actors = [\"alice\", \"bob\"]\nroles = [\"learner\"]");
    assert_denied(&decide(&policy, |_| ()), Gate::Rbac, "subject_not_allowed");
}

#[test]
fn an_admin_of_an_organisation_decides_there_and_nowhere_else() {
    let people = "[principals.\"user://ada\"]\nsubjects = []\norgs = { home = \"admin\" }\n\n\
                  [principals.\"user://max\"]\nsubjects = []\norgs = { home = \"member\" }\n\n\
                  [principals.\"user://eve\"]\nsubjects = [\"agent://planner\"]\norgs = { home = \"owner\" }\n\n[roles.reader]";
    let policy = world_with("[roles.reader]", people);
    let planner = subject("agent://planner");
    let may = |name: &str, org: Option<&str>| {
        let may = policy.may_decide(&by(name, false), &planner, org);
        may.map_err(|reason| reason.code.into_owned())
    };
    let home = Some("home");
    assert_eq!(may("user://ada", home), Ok(Authority::Separate));
    assert_eq!(may("user://max", home), Err("role_missing".to_owned()));
    assert_eq!(may("user://eve", home), Err("own_request".to_owned()));
    for elsewhere in [None, Some("work")] {
        assert_eq!(may("user://ada", elsewhere), Err("no_approvers".to_owned()), "{elsewhere:?}");
        assert!(!policy.names_approvers(elsewhere) && policy.names_approvers(home));
        assert!(policy.may_administer(&by("user://ada", false), elsewhere).is_err());
        assert!(!policy.may_view_approvals(&by("user://ada", false), elsewhere));
        // Elsewhere nothing is different for the operator.
        assert_eq!(policy.may_administer(&by("user://root", true), elsewhere), Ok(Authority::SingleUser));
    }
    assert!(policy.may_administer(&by("user://ada", false), home).is_ok());
    assert!(policy.may_view_approvals(&by("user://ada", false), home));
    assert_eq!(policy.org_role(&Principal::new("user://max").unwrap(), "home"), Some(OrgRole::Member));
    assert_eq!(policy.members("home").count(), 3);
}

#[test]
fn what_no_person_holds_decides_nothing_whatever_its_roles() {
    use PrincipalRole::{Erase, Learner, Look, Operate};
    let all = "subjects = [\"agent://guest\"]\nroles = [\"planner\", \"admin\", \"learner\", \"look\", \"operate\", \"erase\"]";
    let policy = world_with(
        "[roles.reader]",
        &format!("[principals.\"account://any/x\"]\n{all}\norgs = {{ home = \"owner\" }}\n\n[roles.reader]"),
    );
    let planner = subject("agent://planner");
    for (kind, decides, parts, role) in [
        (None, true, [true, true, true, true], Some(OrgRole::Owner)),
        (Some(TokenKind::User), true, [true, true, true, false], Some(OrgRole::Owner)),
        (Some(TokenKind::Service), false, [true, true, false, false], Some(OrgRole::Member)),
        (Some(TokenKind::Sandbox), false, [false; 4], None),
    ] {
        let who = Decider { kind, ..by("account://any/x", false) };
        let decided = [policy.may_decide(&who, &planner, None), policy.may_administer(&who, Some("home"))];
        assert_eq!(decided.map(|may| may.is_ok()), [decides; 2], "{kind:?}");
        assert_eq!(policy.may_view_approvals(&who, Some("home")), decides, "{kind:?}");
        let found = [Learner, Look, Operate, Erase].map(|part| policy.may_operate(&who, part));
        assert_eq!((found, policy.role_in(&who, "home")), (parts, role), "{kind:?}");
    }
}

#[test]
fn a_token_acts_in_its_own_organisation_only() {
    let policy = world_with(
        "[roles.reader]",
        "[principals.\"account://any/x\"]\nsubjects = []\nroles = [\"admin\", \"look\"]\norgs = { home = \"owner\" }\n\n\
         [claims.owners]\norgs = { home = \"owner\" }\n\n[roles.reader]",
    );
    let planner = subject("agent://planner");
    for (org, reaches) in [(None, true), (Some("home"), true), (Some("elsewhere"), false)] {
        let (kind, own) = (org.map(|_| TokenKind::User), org.map(|org| OrgId::new(org).unwrap()));
        let claims = vec!["owners".to_owned()];
        let who = Decider { kind, org: own, claims, ..by("account://any/x", false) };
        let home = Some("home");
        assert_eq!(policy.may_decide(&who, &planner, home).is_ok(), reaches, "{org:?}");
        assert_eq!(policy.may_administer(&who, home).is_ok(), reaches, "{org:?}");
        assert_eq!(policy.may_view_approvals(&who, home), reaches, "{org:?}");
        assert_eq!(policy.may_operate_in(&who, PrincipalRole::Look, home), reaches, "{org:?}");
        assert_eq!(policy.role_in(&who, "home"), reaches.then_some(OrgRole::Owner), "{org:?}");
        // What belongs to no organisation is for users of this machine; the whole state is for a role of it.
        assert_eq!(policy.may_decide(&who, &planner, None).is_ok(), org.is_none(), "{org:?}");
        assert_eq!(policy.may_view_approvals(&who, None), org.is_none(), "{org:?}");
        assert!(policy.may_administer(&who, None).is_ok() && policy.may_operate(&who, PrincipalRole::Look));
    }
}

#[test]
fn a_claim_gives_what_the_policy_says_and_others_nothing() {
    let claims = "[claims.deciders]\nroles = [\"approver\", \"look\"]\n\n\
                  [claims.owners]\norgs = { home = \"owner\" }\n\n[roles.reader]";
    let policy = world_with("[roles.reader]", claims);
    assert!(policy.names_approvers(None), "the claims name them");
    let who = |claims: &[&str]| {
        let claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        Decider { kind: Some(TokenKind::User), claims, ..by("account://any/ada", false) }
    };
    assert_eq!(may(&policy, &who(&["deciders"])), Ok(Authority::Separate));
    assert!(policy.may_operate(&who(&["other", "deciders"]), PrincipalRole::Look));
    assert!(!policy.may_operate(&who(&["deciders"]), PrincipalRole::Operate));
    assert_eq!(policy.role_in(&who(&["owners"]), "home"), Some(OrgRole::Owner));
    for nothing in [&[][..], &["other"], &["Deciders"], &["*"], &["deciders "]] {
        assert_eq!(may(&policy, &who(nothing)), Err("role_missing".to_owned()), "{nothing:?}");
        assert!(!policy.may_operate(&who(nothing), PrincipalRole::Look), "{nothing:?}");
        assert_eq!(policy.role_in(&who(nothing), "home"), None, "{nothing:?}");
    }
}
