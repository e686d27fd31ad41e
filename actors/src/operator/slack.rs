//! Says which accounts users of Slack are. Whoever says so can decide as the account, as whoever makes its tokens can.

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::{OrgId, Principal, SlackUser, is_slack_id};

use super::connections::{check_org, has_room};
use crate::limits::{ACCOUNT_BYTES_MAX, SLACK_USERS_MAX};
use crate::services::slack::{USERS, account, users};
use crate::services::{Services, tokens};
use crate::stored::{delete, put, swap_all};

/// The account that a user of Slack is, and is to be.
pub(super) fn check(
    services: &Services,
    (org, team, user): (&OrgId, &str, &str),
    name: Option<&str>,
) -> Result<(Option<Principal>, Option<Principal>), StoreError> {
    let store = &*services.store;
    if !is_slack_id(team) || !is_slack_id(user) {
        let why = "a workspace and a user are ids such as T024BE7LD and U024BE7LH";
        return Err(StoreError::Invalid(why.to_owned()));
    }
    let before = account(store, (org, team, user))?;
    let Some(name) = name else { return Ok((before, None)) };
    check_org(services, org)?;
    let after = tokens::account(org, name).ok().filter(|_| name.len() <= ACCOUNT_BYTES_MAX);
    let after = after.ok_or_else(|| {
        StoreError::Invalid("the name of an account is ASCII text without blanks, `/` and `*`".to_owned())
    })?;
    if before.is_none() {
        let known = users(store)?.iter().filter(|known| known.org == *org).count();
        has_room("number of users of Slack of the organisation", known + 1, SLACK_USERS_MAX)?;
    }
    Ok((before, Some(after)))
}

pub(super) async fn map(
    services: &Services,
    (org, team, user): (&OrgId, &str, &str),
    name: Option<&str>,
    by: Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (family, key) = (FamilyName::new(USERS)?, format!("{org}/{team}/{user}"));
    let swap = match check(services, (org, team, user), name)?.1 {
        None => delete(family, key, Expect::Any),
        Some(account) => {
            let (team, user) = (team.to_owned(), user.to_owned());
            let set_at = services.clock.now();
            let known = SlackUser { org: org.clone(), team, user, account, set_by: by, set_at };
            put(family, key, Expect::Any, &known)
        }
    };
    swap_all(&*services.store, vec![swap]).await.map(drop)
}
