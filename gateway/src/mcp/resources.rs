//! Resources: the caller's own receipts, and the artifacts that they name.

use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use effectd_actors::effects::artifacts;
use effectd_actors::execution::history;
use effectd_bus::{Cursor, Order, ReceiptQuery};
use effectd_contracts::Receipt;
use rmcp::model::{
    CacheScope, ErrorCode, ErrorData, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate,
};
use serde_json::{Value, json};

use super::call::own_receipt;
use super::caller::Caller;
use super::{Asked, value};
use crate::app::App;
use crate::body::BodyShare;
use crate::extract::json_holding;
use crate::limits::{INVOCATIONS_DEFAULT, MCP_ARTIFACT_BYTES_MAX};
use crate::problem::{Kind, Problem};
use crate::routes::artifacts as artifacts_of;

const RECEIPTS: &str = "effectd://receipts/";
const ARTIFACTS: &str = "/artifacts/";
const JSON: &str = "application/json";

/// The receipts of the session, or of the caller if it has none, the newest first, each with its artifacts.
pub(super) async fn listed(asked: &Asked) -> Result<Value, ErrorData> {
    let wrong = |_| ErrorData::invalid_params("cursor is not from here", None);
    let cursor = asked.params.get("cursor").map(|cursor| cursor.as_str().unwrap_or_default().parse());
    let cursor = cursor.transpose().map_err(wrong)?.map(Cursor);
    let caller = Caller::of(asked)?;
    let principal = asked.peer.principal.clone();
    let query = ReceiptQuery {
        principal: Some(principal.clone()),
        session: caller.session(),
        order: Order::NewestFirst,
        cursor,
        limit: INVOCATIONS_DEFAULT,
        ..ReceiptQuery::default()
    };
    let is_own = move |receipt: &Receipt| receipt.principal == principal;
    let page = asked.app.blocking(move |app: &App| Ok(history::page(app.store(), &query, false, is_own)?));
    let page = page.await?;
    let resources = page.receipts.iter().flat_map(resources_of).collect();
    let mut list = ListResourcesResult::with_all_items(resources).with_ttl_ms(0);
    list.cache_scope = Some(CacheScope::Private);
    list.next_cursor = page.next.map(|next| next.to_string());
    Ok(value(list))
}

fn resources_of(receipt: &Receipt) -> Vec<Resource> {
    let uri = format!("{RECEIPTS}{}", receipt.receipt_id);
    let outcome = value(receipt.outcome);
    let name = format!("{} {}", receipt.tool_id, outcome.as_str().unwrap_or_default());
    let mut all = vec![Resource::new(&uri, name).with_mime_type(JSON)];
    all.extend(artifacts::put_out(receipt).into_iter().map(|id| {
        let name = format!("artifact of {}", receipt.tool_id);
        Resource::new(format!("{uri}{ARTIFACTS}{id}"), name)
    }));
    all
}

pub(super) fn templates() -> Value {
    let receipt = ResourceTemplate::new(format!("{RECEIPTS}{{receipt_id}}"), "receipt").with_mime_type(JSON);
    let artifact =
        ResourceTemplate::new(format!("{RECEIPTS}{{receipt_id}}{ARTIFACTS}{{artifact_id}}"), "artifact");
    let mut list = ListResourceTemplatesResult::with_all_items(vec![receipt, artifact]).with_ttl_ms(0);
    list.cache_scope = Some(CacheScope::Private);
    value(list)
}

/// The answer to `resources/read`. What is not there and what belongs to others look the same.
pub(super) async fn read(id: &Value, asked: &Asked) -> Result<Response, ErrorData> {
    let uri = asked.text("uri")?;
    let (contents, share) = contents(asked, uri).await.map_err(|problem| match problem.status {
        404 | 403 => {
            let is_modern = asked.era.is_modern();
            let code = if is_modern { ErrorCode::INVALID_PARAMS } else { ErrorCode::RESOURCE_NOT_FOUND };
            ErrorData::new(code, problem.detail, Some(json!({ "uri": uri })))
        }
        _ => problem.into(),
    })?;
    let mut read = ReadResourceResult::new(vec![contents]).with_ttl_ms(0);
    read.cache_scope = Some(CacheScope::Private);
    let (status, message) = asked.era.message(id, Ok(value(read)));
    Ok(json_holding(status, &message, share))
}

/// The contents, and their share of the memory for results.
async fn contents(asked: &Asked, uri: &str) -> Result<(ResourceContents, BodyShare), Problem> {
    let app = &asked.app;
    let unknown = || Problem::of(Kind::NotFound, "you have no resource of this URI");
    let rest = uri.strip_prefix(RECEIPTS).ok_or_else(unknown)?;
    let (id, artifact) = rest.split_once(ARTIFACTS).map_or((rest, None), |(id, name)| (id, Some(name)));
    let receipt = own_receipt(asked, id.to_owned())?;
    let Some(name) = artifact else {
        let text = ResourceContents::text(value(&receipt).to_string(), uri).with_mime_type(JSON);
        return Ok((text, BodyShare::default()));
    };
    let mut reader = artifacts_of::open(app, &asked.peer, id.to_owned(), name.to_owned()).await?;
    let bytes = reader.bytes();
    if bytes > MCP_ARTIFACT_BYTES_MAX {
        let why = format!("the artifact has {bytes} bytes; artifact_get writes it to a file of the space");
        return Err(Problem::of(Kind::QueryInvalid, why));
    }
    let share = app.result_share(&asked.peer, bytes)?;
    let read = move |_: &App| {
        let mut all = Vec::new();
        while let Some(piece) =
            reader.piece().map_err(|error| Problem::of(Kind::ArtifactUnknown, error.to_string()))?
        {
            all.extend(piece);
        }
        Ok(all)
    };
    let contents = match String::from_utf8(app.blocking(read).await?) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(other) => ResourceContents::blob(BASE64_STANDARD.encode(other.as_bytes()), uri)
            .with_mime_type("application/octet-stream"),
    };
    Ok((contents, share))
}
