//! Repeats: under which terms an action is claimed, and whether the receipt of an earlier action answers for it.

use effectd_bus::limits::RESOURCES_MAX;
use effectd_bus::{Asker, Lookup, Store, StoreError};
use effectd_contracts::batch::undo_id;
use effectd_contracts::{ActionId, ActionRequest, Outcome, Receipt, ReceiptId, Repeat, Touch, canonical};
use serde_json::{Map, Value};

use super::snapshot::{self, Compared};
use crate::action::Gated;
use crate::action::proofs::{Preimages, Terms};
use crate::claims::{key, resources};
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::files::Files;

/// What the action is claimed under, with parameters after redaction and the paths that it may change; none for a dry run.
pub(crate) fn terms_of(
    files: &Files,
    request: &ActionRequest,
    tool: &RegisteredTool,
    params: &Map<String, Value>,
    touched: Option<Vec<Touch>>,
) -> Terms {
    let (spec, space) = (tool.spec(), &request.space_id);
    if touched.is_some() {
        files.learn_case(space);
    }
    let ignores_case = touched.is_some() && files.ignores_case(space);
    let params = &key::normal(params, ignores_case);
    let mut terms = Terms {
        key: None,
        params_digest: files.identity.keyed(&canonical::digest(params)),
        resources: Vec::new(),
        depends: Vec::new(),
        stale: None,
        touched: Vec::new(),
        before: None,
        preimages: Preimages::default(),
        pinned: None,
        repeat: spec.repeat,
    };
    let Some(touched) = touched else {
        // A dry run has no key and changes no resource.
        return terms;
    };
    terms.touched = touched;
    let names = resources::of_action(spec, space, params, &terms.touched);
    terms.resources = resources::compared(names, ignores_case);
    terms.key.clone_from(&request.idempotency_key);
    // A tool that declares its paths, and has none here, works in the scratch folder, which is gone after the call.
    let is_kept = !terms.touched.is_empty() || tool.touches(params).is_none();
    if terms.key.is_none() && is_kept {
        terms.key = key::key_of(spec, params, &files.identity);
        if terms.key.is_some() {
            terms.depends.clone_from(&terms.resources);
        }
    }
    terms
}

/// Whether this asker's request was done before, or is in flight. Costs no write.
pub(crate) async fn look_up(
    services: &Services,
    asker: &Asker,
    action: &ActionId,
    terms: &mut Terms,
) -> Result<Lookup, StoreError> {
    let Some(key) = &terms.key else {
        return Ok(Lookup::Unknown);
    };
    let found = services.store.lookup(asker, key, &terms.params_digest, &terms.depends)?;
    if let Lookup::Done { receipt_id } = &found
        && is_stale(services, action, terms, receipt_id).await?
    {
        terms.stale = Some(receipt_id.clone());
        return Ok(Lookup::Unknown);
    }
    Ok(found)
}

/// Whether the receipt of a key is no answer any more: its batch has undone the effect, or, of a derived key, somebody else changed the
/// paths that the action declares. If that cannot be known, only an effect that is safe to repeat is repeated. An action that has ended
/// keeps its receipt.
pub(crate) async fn is_stale(
    services: &Services,
    action: &ActionId,
    terms: &Terms,
    receipt_id: &ReceiptId,
) -> Result<bool, StoreError> {
    let Some((receipt, _)) = services.receipt(receipt_id) else {
        return Ok(false);
    };
    let is_stale = if is_undone(&*services.store, &receipt)? {
        true
    } else if terms.depends.is_empty() || terms.touched.is_empty() {
        false
    } else {
        let comparing =
            snapshot::compare_now(&services.files, &receipt.space_id, &terms.touched, &receipt.effects);
        match comparing.await {
            Compared::Holds => false,
            Compared::Differs => true,
            Compared::Unknown => terms.repeat == Repeat::Safe,
        }
    };
    Ok(is_stale && services.store.receipt_of(action)?.is_none())
}

/// Whether this is the receipt of an item that its batch has undone.
fn is_undone(store: &dyn Store, receipt: &Receipt) -> Result<bool, StoreError> {
    let Some((batch, index)) = receipt.origin.item() else { return Ok(false) };
    let undo = undo_id(&ActionId::new(batch)?, index as usize);
    let undo = undo.map_or(Ok(None), |undo| store.receipt_of(&undo))?;
    let undo = undo.map(|stored| stored.parse()).transpose()?;
    Ok(undo.is_some_and(|undo| undo.outcome == Outcome::Executed))
}

/// [`terms_of`] an action that passed the gate.
pub(crate) async fn terms_of_gated(files: &Files, request: &ActionRequest, gated: &Gated) -> Terms {
    let touched = match gated.dry_run() {
        Some(_) => None,
        // If the paths cannot be listed, the execution reports it.
        None => Some(snapshot::touched_by(files, &request.space_id, gated).await.unwrap_or_default()),
    };
    let mut terms = terms_of(files, request, gated.tool(), gated.params(), touched);
    if gated.terms().is_some() {
        // An equal action was not verified by this plan.
        terms.key.clone_from(&request.idempotency_key);
        terms.depends.clear();
    }
    if let (Some(command), None) = (gated.command(), gated.dry_run()) {
        let (spec, space) = (gated.tool().spec(), &request.space_id);
        let names = resources::of_command(spec, space, gated.params(), command, terms.resources);
        terms.resources = resources::compared(names, files.ignores_case(space));
    }
    let checks = gated.terms().into_iter().flat_map(|terms| &terms.checks);
    for check in checks.filter(|check| !check.command.caches.is_empty()) {
        // Runs of a command with caches go one after another.
        let name = resources::of_caches(&request.space_id, &check.command);
        if let Some(name) = name.filter(|name| !terms.resources.contains(name)) {
            terms.resources.insert(0, name);
        }
        terms.resources.truncate(RESOURCES_MAX);
    }
    terms
}
