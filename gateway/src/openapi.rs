//! The description of the door, OpenAPI 3.1: the routes as their handlers state them, the types as the contracts do.
//!
//! It is served at `/openapi.json` and checked in as `docs/openapi.json`, so that a change of the interface shows in review.

use effectd_contracts::{
    ActionRequest, AmendmentEntry, Failure, Gate, InclusionProof, LogHead, Operation, Outcome, Phase, Receipt,
};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use utoipa::OpenApi;
use utoipa::openapi::{Ref, RefOr, Schema};

use crate::advice::{By, Change};
use crate::letters::{CauseView, LetterList, LetterNow, LetterView, ReviewView, TryView};
use crate::operations::OperationView;
use crate::problem::Problem;
use crate::routes::{
    actions, approvals, artifacts, breakers, dlq, grants, groups, health, log, notifications, operations,
    policy, preview, quarantine, receipts, store, tools,
};
use crate::upkeep::{EraseBody, ErasedView, EventList, RetainedView, StoreView};
use crate::views::approvals::{
    ApprovalList, ApprovalView, ApproveBody, DecisionView, DenyBody, EditBody, GrantBody, GrantList,
    GrantView, GrantWould, HowWord, PreviewView, PromptView, StandingView,
};
use crate::views::artifacts::{QuarantineBody, QuarantineList, QuarantineView, ReleaseView};
use crate::views::notifications::{NotificationList, NotificationView};
use crate::views::{
    ActionView, Amending, BreakerView, Explanation, Health, HeldView, PolicyChange, PolicyView, ReceiptList,
    State,
};

/// Where the types are.
const SCHEMAS: &str = "/components/schemas";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "effectd",
        description = "The local door of effectd, on a unix socket. The peer's uid says who asks; every problem is \
                       `application/problem+json` with a stable `type` and `code`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    paths(
        actions::submit,
        actions::show,
        actions::wait,
        actions::cancel,
        preview::preview,
        receipts::list,
        receipts::show,
        receipts::amendments,
        receipts::amend,
        log::proof,
        log::show,
        log::sign,
        log::heads,
        log::rotate,
        log::keys,
        log::entries,
        log::frontier,
        artifacts::get,
        quarantine::list,
        quarantine::quarantine,
        quarantine::release,
        notifications::list,
        notifications::show,
        tools::list,
        tools::show,
        policy::show,
        policy::check,
        policy::reload,
        policy::change,
        policy::explain,
        policy::explain_receipt,
        approvals::list,
        approvals::show,
        approvals::approve,
        approvals::preview_edited,
        approvals::deny,
        approvals::preview_always,
        grants::list,
        grants::create,
        grants::request,
        grants::preview_request,
        grants::activate,
        grants::revoke,
        breakers::list,
        breakers::show,
        breakers::trip,
        breakers::reset,
        dlq::list,
        dlq::causes,
        dlq::show,
        dlq::review,
        dlq::requeue,
        dlq::purge,
        operations::perform,
        store::stats,
        store::events,
        store::retain,
        store::erase,
        groups::list,
        groups::show,
        groups::seek,
        health::healthz,
        health::readyz,
        health::metrics,
        health::openapi,
    ),
    components(schemas(
        ActionView,
        HeldView,
        ApprovalView,
        PromptView,
        PreviewView,
        ApprovalList,
        DecisionView,
        ApproveBody,
        HowWord,
        DenyBody,
        EditBody,
        StandingView,
        GrantView,
        GrantList,
        GrantBody,
        GrantWould,
        BreakerView,
        QuarantineBody,
        QuarantineView,
        QuarantineList,
        ReleaseView,
        NotificationView,
        NotificationList,
        CauseView,
        EventList,
        LetterList,
        LetterNow,
        LetterView,
        ReviewView,
        OperationView,
        EraseBody,
        ErasedView,
        RetainedView,
        StoreView,
        TryView,
        State,
        Problem,
        Change,
        By,
        Health,
        ReceiptList,
        PolicyView,
        PolicyChange,
        Explanation,
        Amending
    ))
)]
struct Door;

fn of(name: &str) -> RefOr<Schema> {
    RefOr::Ref(Ref::new(format!("#{SCHEMAS}/{name}")))
}

pub(crate) fn receipt() -> RefOr<Schema> {
    of("Receipt")
}

pub(crate) fn receipts() -> RefOr<Schema> {
    RefOr::T(
        utoipa::openapi::ArrayBuilder::new()
            .items(receipt())
            .build()
            .into(),
    )
}

pub(crate) fn outcome() -> RefOr<Schema> {
    of("Outcome")
}

pub(crate) fn phase() -> RefOr<Schema> {
    of("Phase")
}

pub(crate) fn gate() -> RefOr<Schema> {
    of("Gate")
}

/// The whole description.
pub fn document() -> Value {
    // A description is plain data with text keys, for which serde_json has no failure.
    let mut document = serde_json::to_value(Door::openapi()).unwrap_or_default();
    if let Some(Value::Object(schemas)) = document.pointer_mut(SCHEMAS) {
        schemas.extend(contracts());
    }
    document
}

/// The types of the contracts, which describe themselves.
fn contracts() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    generator.subschema_for::<ActionRequest>();
    generator.subschema_for::<Receipt>();
    generator.subschema_for::<LogHead>();
    generator.subschema_for::<InclusionProof>();
    generator.subschema_for::<AmendmentEntry>();
    generator.subschema_for::<Failure>();
    generator.subschema_for::<Operation>();
    generator.subschema_for::<Outcome>();
    generator.subschema_for::<Phase>();
    generator.subschema_for::<Gate>();
    generator.take_definitions(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.push(target.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }

    #[test]
    fn types_of_door_and_contracts_have_different_names() {
        let door = serde_json::to_value(Door::openapi()).unwrap();
        let own = door.pointer(SCHEMAS).unwrap().as_object().unwrap();
        for name in contracts().keys() {
            assert!(!own.contains_key(name), "{name}");
        }
    }
}
