//! Dead letters in JSON: one by one, by cause, and quarantined actions for review.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use effectd_actors::approvals::view::shown;
use effectd_actors::operator::dead_letters::{self, Now};
use effectd_actors::operator::service::OPERATION_LETTERS_MAX;
use effectd_actors::services::webhooks;
use effectd_actors::{Registry, Services};
use effectd_bus::{
    Body, DELIVERIES_EXHAUSTED, DeadLetter, DeadLetterOrigin, Fingerprint, Store, StoreError, TopicName,
};
use effectd_contracts::{Approval, Code, DecisionData, Receipt, ReceiptId, SpaceId, ToolId, filter};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::limits::OPERATOR_PAGE_MAX;

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TryView {
    pub at: String,
    /// Empty if it can no longer be read.
    pub error: String,
}

/// A dead letter. What comes from its decision is null if that can no longer be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterView {
    pub letter: u64,
    pub time: String,
    pub topic: String,
    pub action_id: Option<String>,
    /// The receipt of the failure.
    pub receipt_id: Option<String>,
    pub tool_id: Option<String>,
    #[serde(default)]
    pub subject_id: Option<String>,
    #[serde(default)]
    pub space_id: Option<String>,
    /// The webhook that could not deliver an event about the action; left out if the action itself was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_id: Option<String>,
    /// The peer that asked for the action.
    #[serde(default)]
    pub principal: Option<String>,
    /// The stable code of the failure.
    pub code: String,
    /// The fingerprint that letters of the same cause share.
    pub cause: String,
    pub attempts: u32,
    /// The last attempts.
    pub tries: Vec<TryView>,
    /// The error, for people; null if it can no longer be read.
    pub detail: Option<String>,
    /// Without secrets and personal data; only in the answer about one letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<Map<String, Value>>,
    /// The approval of the action, as in its receipt; only in the answer about one letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub approval: Option<Approval>,
}

impl From<&DeadLetter> for LetterView {
    fn from(letter: &DeadLetter) -> Self {
        let receipt_id = match &letter.origin {
            DeadLetterOrigin::Completion { receipt_id } => Some(receipt_id.to_string()),
            DeadLetterOrigin::Delivery { .. } => None,
        };
        let detail = match &letter.detail {
            Body::Clear(bytes) | Body::Opened(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Body::Shredded => None,
        };
        let decision = dead_letters::decision(letter);
        let request = decision.as_ref().map(|decision| &decision.request);
        let (webhook, space) = webhooks::of_letter(letter).unzip();
        let space = request.map(|request| request.space_id.clone()).or(space.flatten());
        let tries =
            letter.tries.iter().map(|tried| TryView { at: tried.at.to_string(), error: tried.error.clone() });
        Self {
            letter: letter.letter,
            time: letter.time.to_string(),
            topic: letter.topic.to_string(),
            action_id: letter.action_id.as_ref().map(ToString::to_string),
            receipt_id,
            tool_id: request.map(|request| request.tool_id.to_string()),
            subject_id: request.map(|request| request.subject_id.to_string()),
            space_id: space.map(|space| space.to_string()),
            webhook_id: webhook.map(|id| id.to_string()),
            principal: decision.as_ref().map(|decision| decision.principal.to_string()),
            code: letter.code.clone(),
            cause: letter.fingerprint.to_string(),
            attempts: letter.attempts,
            tries: tries.collect(),
            detail,
            params: None,
            approval: None,
        }
    }
}

impl LetterView {
    /// Whether a safety check stopped the action. Such a letter is reviewed, not retried.
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// A page of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterList {
    /// Oldest first; possibly none although there are more.
    pub letters: Vec<LetterView>,
    /// The `from` of the next page; left out on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Dead letters of one cause.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CauseView {
    /// The fingerprint that they share.
    pub cause: String,
    pub code: String,
    pub count: u64,
    /// The time of the oldest.
    pub first: String,
    /// The time of the newest.
    pub last: String,
    /// The number of the newest.
    pub newest: u64,
    /// The tool; left out if there are several, or it can no longer be read.
    pub tool_id: Option<String>,
    /// Whether they are of several tools: only with the code `deliveries_exhausted`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub several_tools: bool,
    /// The policy under which the newest failed.
    pub policy_digest: Option<String>,
    /// The error of the newest, for people; left out if it can no longer be read.
    pub sample: Option<String>,
}

impl CauseView {
    pub fn is_quarantined(&self) -> bool {
        self.code == Code::SafetyQuarantined.as_str()
    }
}

/// The outcome for one dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LetterNow {
    pub letter: u64,
    /// `requeued`, `purged`, `gone`, or `left: ` and the reason.
    pub now: String,
}

impl LetterNow {
    pub(crate) fn of((letter, now): (u64, Now)) -> Self {
        let now = match now {
            Now::Requeued => "requeued".to_owned(),
            Now::Purged => "purged".to_owned(),
            Now::Gone => "gone".to_owned(),
            Now::Left(why) => format!("left: {why}"),
        };
        Self { letter, now }
    }

    pub fn is_left(&self) -> bool {
        self.now.starts_with("left")
    }
}

/// Selects dead letters.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LetterQuery {
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this cause.
    pub cause: Option<String>,
    /// Of this tool.
    pub tool: Option<String>,
    /// Of this subject.
    pub subject: Option<String>,
    /// Of this space.
    pub space: Option<String>,
    /// Only letters of this organisation. It comes from the token; a query cannot set it.
    #[serde(skip)]
    pub(crate) org: Option<String>,
    /// With this code.
    pub code: Option<String>,
    /// Not older than this: a time (`2026-01-01T00:00:00Z`) or an age (`2h`).
    pub since: Option<String>,
    /// From this number on.
    pub from: u64,
}

impl LetterQuery {
    fn topic(&self) -> Result<Option<TopicName>, StoreError> {
        self.topic.as_deref().map(TopicName::new).transpose()
    }

    /// Whether it selects all letters of its topic.
    fn is_all(&self) -> bool {
        *self == Self { topic: self.topic.clone(), ..Self::default() }
    }

    /// The view of a letter, if it is selected.
    fn selector(
        &self,
        services: &Services,
    ) -> Result<impl Fn(&DeadLetter) -> Option<LetterView>, StoreError> {
        let (registry, policy, now) = (services.registry(), services.policy(), services.clock.now());
        let since = self.since.as_deref().map(|since| filter::moment(since, now)).transpose();
        let since = since.map_err(|error| StoreError::Invalid(error.to_string()))?;
        let tool = self.tool.as_deref().map(|tool| canonical(&registry, tool));
        Ok(move |letter: &DeadLetter| {
            let view = LetterView::from(letter);
            let of_tool = view.tool_id.as_deref().map(|tool| canonical(&registry, tool));
            let space = view.space_id.as_deref().and_then(|space| SpaceId::new(space).ok());
            let org = space.and_then(|space| policy.org_of(&space).map(str::to_owned));
            let wanted = [
                (&self.cause, Some(&view.cause)),
                (&self.code, Some(&view.code)),
                (&tool, of_tool.as_ref()),
                (&self.subject, view.subject_id.as_ref()),
                (&self.space, view.space_id.as_ref()),
                (&self.org, org.as_ref()),
            ];
            let fits = wanted.iter().all(|(asked, found)| asked.is_none() || asked.as_ref() == *found);
            let in_time = since.is_none_or(|since| letter.time >= since) && letter.letter >= self.from;
            (fits && in_time).then_some(view)
        })
    }
}

/// The id of a tool, by its id or an alias; an unknown name stays.
fn canonical(registry: &Registry, name: &str) -> String {
    let known = ToolId::new(name).ok().and_then(|name| Some(registry.get(&name)?.spec().tool_id.to_string()));
    known.unwrap_or_else(|| name.to_owned())
}

pub(crate) fn list(services: &Services, query: &LetterQuery) -> Result<LetterList, StoreError> {
    let select = query.selector(services)?;
    let page = services.store.letters(query.topic()?.as_ref(), query.from, OPERATOR_PAGE_MAX)?;
    Ok(LetterList { letters: page.letters.iter().filter_map(select).collect(), next: page.next })
}

/// A letter that is selected. One that is not there and one of others fail in the same way.
fn selected(
    services: &Services,
    query: &LetterQuery,
    number: u64,
) -> Result<(DeadLetter, LetterView), StoreError> {
    let select = query.selector(services)?;
    let found = services.store.letter(number)?.and_then(|letter| {
        let view = select(&letter)?;
        Some((letter, view))
    });
    found.ok_or(UNKNOWN)
}

const UNKNOWN: StoreError = StoreError::NotFound { what: "the dead letter" };

/// Fails unless all these letters are selected. Of more than an operation takes, which it refuses, the rest is not read.
pub(crate) fn check(services: &Services, query: &LetterQuery, letters: &[u64]) -> Result<(), StoreError> {
    let mut taken = letters.iter().take(OPERATION_LETTERS_MAX);
    taken.try_for_each(|letter| selected(services, query, *letter).map(drop))
}

/// One letter, with its parameters and its approval.
pub(crate) fn one(services: &Services, query: &LetterQuery, number: u64) -> Result<LetterView, StoreError> {
    let (letter, mut view) = selected(services, query, number)?;
    view.params = dead_letters::decision(&letter).map(|decision| params(services, &decision));
    view.approval =
        receipt(&*services.store, view.receipt_id.as_deref())?.and_then(|receipt| receipt.approval);
    Ok(view)
}

/// The parameters as in an approval: none if the tool is unknown.
fn params(services: &Services, decision: &DecisionData) -> Map<String, Value> {
    shown(&services.registry(), &services.policy(), &decision.request)
}

/// A quarantined action, for review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReviewView {
    pub letter: LetterView,
    pub tool_id: String,
    pub space_id: String,
    pub subject_id: String,
    /// The peer that asked for the action.
    pub principal: String,
    /// Without secrets and personal data.
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

/// Fails if no letter of this number is quarantined, or it can no longer be read.
pub(crate) fn review(
    services: &Services,
    query: &LetterQuery,
    number: u64,
) -> Result<ReviewView, StoreError> {
    let (letter, view) = selected(services, query, number)?;
    let decision = dead_letters::decision(&letter).filter(|_| view.is_quarantined()).ok_or(UNKNOWN)?;
    Ok(ReviewView {
        letter: view,
        tool_id: decision.request.tool_id.to_string(),
        space_id: decision.request.space_id.to_string(),
        subject_id: decision.request.subject_id.to_string(),
        principal: decision.principal.to_string(),
        params: params(services, &decision),
    })
}

/// The causes that selected dead letters have in common, most frequent first.
pub(crate) fn causes(services: &Services, query: &LetterQuery) -> Result<Vec<CauseView>, StoreError> {
    let store = &*services.store;
    let select = query.selector(services)?;
    let takes = |letter: &DeadLetter| select(letter).is_some();
    let takes: Option<&dyn Fn(&DeadLetter) -> bool> = if query.is_all() { None } else { Some(&takes) };
    let topic = query.topic()?;
    let groups = store.letter_groups(topic.as_ref(), takes)?;
    // The Store makes these causes without a tool.
    let exhausted = groups.iter().filter(|group| group.code == DELIVERIES_EXHAUSTED);
    let tools: BTreeMap<Fingerprint, BTreeSet<Option<String>>> =
        exhausted.map(|group| (group.fingerprint, BTreeSet::new())).collect();
    let tools = RefCell::new(tools);
    let note_tool = |letter: &DeadLetter| {
        if let Some(tools) = tools.borrow_mut().get_mut(&letter.fingerprint) {
            tools.extend(select(letter).map(|view| view.tool_id));
        }
        false
    };
    if !tools.borrow().is_empty() {
        store.letter_groups(topic.as_ref(), Some(&note_tool))?;
    }
    let groups = groups.into_iter().map(|group| {
        let several_tools = tools.borrow().get(&group.fingerprint).is_some_and(|tools| tools.len() > 1);
        // The newest letter may be gone by now.
        let newest = store.letter(group.newest)?.as_ref().map(LetterView::from);
        let receipt_id = newest.as_ref().and_then(|letter| letter.receipt_id.as_deref());
        Ok(CauseView {
            cause: group.fingerprint.to_string(),
            code: group.code,
            count: group.count,
            first: group.first.to_string(),
            last: group.last.to_string(),
            newest: group.newest,
            policy_digest: receipt(store, receipt_id)?
                .and_then(|receipt| receipt.decision)
                .map(|decision| decision.policy_digest.to_string()),
            tool_id: newest.as_ref().filter(|_| !several_tools).and_then(|letter| letter.tool_id.clone()),
            several_tools,
            sample: newest.and_then(|letter| letter.detail),
        })
    });
    groups.collect()
}

/// The receipt of this id, if it can be read.
fn receipt(store: &dyn Store, id: Option<&str>) -> Result<Option<Receipt>, StoreError> {
    let Some(id) = id.and_then(|id| ReceiptId::new(id).ok()) else {
        return Ok(None);
    };
    Ok(store.receipt(&id)?.and_then(|stored| stored.parse().ok()))
}
