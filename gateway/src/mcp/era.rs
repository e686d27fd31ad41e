//! Which dialect a request speaks. That of 2026-07-28 says so in every request, in a header and in `_meta`, and names method and tool in
//! headers, too, for those who route by them. The older ones begin with `initialize`; after that, every request stands alone here as well.

use axum::http::HeaderMap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::{
    ClientCapabilities, DiscoverResult, ErrorData, Implementation, InitializeResult, ProtocolVersion,
    RequestMetaObject, ResourcesCapability, ServerCapabilities, TASKS_EXTENSION_ID, ToolsCapability,
};
use serde_json::{Map, Value};

use super::value;

const VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
/// How `effectd mcp` says that it hands changes of the tool list on to its client.
const TRANSPORT: &str = "effectd-transport";

const SUPPORTED: [ProtocolVersion; 3] =
    [ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

const INSTRUCTIONS: &str = "effectd carries out actions for you: it asks the policy, and a person where the policy says so, runs the tool in a \
    sandbox, and keeps a receipt. Paths begin with `workspace/`, the root of your space. A result that is an error says what has to change. \
    What waits for a person is not done yet: call effectd_wait instead of repeating it. effectd_preview, if you have it, shows what a call would \
    change, and effectd_undo takes back what one has changed.";

#[derive(Debug, Clone)]
pub(super) struct Era {
    version: ProtocolVersion,
    /// Whether the client knows tasks.
    pub(super) tasks: bool,
}

impl Era {
    /// The dialect of a message; the error is a wrong header or `_meta`.
    pub(super) fn of(
        headers: &HeaderMap,
        is_request: bool,
        method: &str,
        params: &Map<String, Value>,
        meta: &RequestMetaObject,
    ) -> Result<Self, ErrorData> {
        let header = one(headers, VERSION)?;
        let modern = ProtocolVersion::V_2026_07_28;
        let is_modern = header.is_some_and(|header| header >= modern.as_str());
        check_names(headers, is_modern, method, params)?;
        if method == "initialize" && !is_modern {
            return Self::beginning(header, params);
        }
        let named = meta.protocol_version();
        if named.as_ref().is_some_and(|named| header != Some(named.as_str())) {
            let why = "MCP-Protocol-Version must be the version that _meta names";
            return Err(ErrorData::header_mismatch(why, None));
        }
        let version = match named {
            Some(named) if SUPPORTED.contains(&named) => named,
            Some(named) => return Err(ErrorData::unsupported_protocol_version(named, &SUPPORTED)),
            None if is_request && (is_modern || method == "server/discover") => return Err(incomplete(meta)),
            None => known(header)?,
        };
        let era = Self { version, tasks: false };
        if !era.is_modern() {
            return Ok(era);
        }
        if is_request && !meta.missing_required_keys(&modern).is_empty() {
            return Err(incomplete(meta));
        }
        let tasks = meta.client_capabilities().is_some_and(|client| client.supports_tasks());
        Ok(Self { tasks, ..era })
    }

    /// The dialect that a client of the older ones gets: the one that it asks for, or the newest of them.
    fn beginning(header: Option<&str>, params: &Map<String, Value>) -> Result<Self, ErrorData> {
        let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
        if header.is_some_and(|header| header != asked) {
            let why = "MCP-Protocol-Version must be params.protocolVersion";
            return Err(ErrorData::invalid_request(why, None));
        }
        let mut spoken = SUPPORTED.into_iter().filter(ProtocolVersion::has_initialize);
        let version = spoken.find(|version| version.as_str() == asked);
        Ok(Self { version: version.unwrap_or(ProtocolVersion::LATEST_WITH_INITIALIZE), tasks: false })
    }

    /// Whether it is that of 2026-07-28.
    pub(super) fn is_modern(&self) -> bool {
        !self.version.has_initialize()
    }

    /// Fails unless the client says that it knows tasks.
    pub(super) fn check_tasks(&self) -> Result<(), ErrorData> {
        if self.tasks {
            return Ok(());
        }
        let mut needed = ClientCapabilities::default();
        needed.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), Map::new())].into());
        Err(ErrorData::missing_required_client_capability(needed))
    }

    /// The answer to `initialize`. Changes of the tool list are announced only to who hears of them.
    pub(super) fn initialized(&self, headers: &HeaderMap) -> Value {
        let hears = headers.get(TRANSPORT).is_some_and(|transport| transport == "stdio");
        let info = InitializeResult::new(capabilities(hears)).with_server_info(server());
        value(info.with_instructions(INSTRUCTIONS).with_protocol_version(self.version.clone()))
    }

    /// A result as this dialect writes it: the older ones know neither its kind nor how long it is current.
    pub(super) fn dressed(&self, mut result: Value) -> Value {
        if let Some(result) = result.as_object_mut().filter(|_| !self.is_modern()) {
            for newer in ["resultType", "ttlMs", "cacheScope"] {
                result.remove(newer);
            }
        }
        result
    }
}

/// The answer to `server/discover`.
pub(super) fn discovered() -> Value {
    let mut capabilities = capabilities(true);
    capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), Map::new())].into());
    let mut found = DiscoverResult::new(SUPPORTED.to_vec(), capabilities).with_server_info(server());
    found.instructions = Some(INSTRUCTIONS.to_owned());
    value(found)
}

fn server() -> Implementation {
    Implementation::new("effectd", env!("CARGO_PKG_VERSION"))
}

fn capabilities(list_changed: bool) -> ServerCapabilities {
    let mut tools = ToolsCapability::default();
    tools.list_changed = list_changed.then_some(true);
    let mut all = ServerCapabilities::default();
    (all.tools, all.resources) = (Some(tools), Some(ResourcesCapability::default()));
    all
}

fn incomplete(meta: &RequestMetaObject) -> ErrorData {
    let missing = meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).join(", ");
    ErrorData::invalid_params(format!("_meta lacks, or has wrong: {missing}"), None)
}

/// The version in the header of an older dialect; without one, the last that had no header.
fn known(header: Option<&str>) -> Result<ProtocolVersion, ErrorData> {
    let Some(header) = header else { return Ok(ProtocolVersion::V_2025_03_26) };
    let mut known = ProtocolVersion::KNOWN_VERSIONS.iter();
    known.find(|version| version.as_str() == header).cloned().ok_or_else(|| {
        let requested = serde_json::from_value(Value::from(header)).unwrap_or_default();
        ErrorData::unsupported_protocol_version(requested, &SUPPORTED)
    })
}

/// The value of a header that may occur once.
fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, ErrorData> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|_| values.next().is_none());
    let unclear = || ErrorData::header_mismatch(format!("{name} must occur once, as plain text"), None);
    text.map(Some).ok_or_else(unclear)
}

/// Fails unless the headers name what the body does. In older dialects they may be missing, but not wrong: who routes by them does not
/// know the dialect.
fn check_names(
    headers: &HeaderMap,
    is_modern: bool,
    method: &str,
    params: &Map<String, Value>,
) -> Result<(), ErrorData> {
    let given = one(headers, METHOD)?;
    if given != Some(method) && (is_modern || given.is_some()) {
        return Err(ErrorData::header_mismatch("Mcp-Method must be the method of the body", None));
    }
    let named_by = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return Ok(()),
    };
    let Some(name) = params.get(named_by).and_then(Value::as_str) else { return Ok(()) };
    let given = one(headers, NAME)?;
    if given.and_then(decoded).as_deref() != Some(name) && (is_modern || given.is_some()) {
        return Err(ErrorData::header_mismatch(format!("Mcp-Name must be params.{named_by}"), None));
    }
    Ok(())
}

/// The text of a header that may be in Base64; `None` if it is not valid.
fn decoded(header: &str) -> Option<String> {
    let Some(coded) = header.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(header.to_owned());
    };
    String::from_utf8(BASE64_STANDARD.decode(coded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rmcp::model::ErrorCode;
    use serde_json::json;

    use super::*;

    const NEW: &str = "2026-07-28";

    fn read(headers: &[(&'static str, &str)], method: &str, params: Value) -> Result<Era, i32> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(*name, value.parse().unwrap());
        }
        let mut params = params.as_object().unwrap().clone();
        let meta = params.remove("_meta").unwrap_or_else(|| json!({}));
        let meta = meta.as_object().unwrap().clone().into();
        Era::of(&all, true, method, &params, &meta).map_err(|error| error.code.0)
    }

    fn meta(version: &str) -> Value {
        json!({
            "io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {},
        })
    }

    #[test]
    fn each_dialect_is_told_by_its_first_words() {
        for (asked, given) in
            [("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25"), ("2024-11-05", "2025-11-25")]
        {
            let era = read(&[], "initialize", json!({ "protocolVersion": asked })).unwrap();
            assert_eq!((era.version.as_str(), era.is_modern()), (given, false));
            assert_eq!(era.initialized(&HeaderMap::new())["protocolVersion"], given);
        }
        assert!(!read(&[], "tools/list", json!({})).unwrap().is_modern());
        assert!(!read(&[(VERSION, "2025-11-25")], "tools/list", json!({})).unwrap().is_modern());
        let new = [(VERSION, NEW), (METHOD, "tools/list")];
        let era = read(&new, "tools/list", json!({ "_meta": meta(NEW) })).unwrap();
        assert!(era.is_modern() && !era.tasks);
        let begins = [(VERSION, NEW), (METHOD, "initialize")];
        assert!(read(&begins, "initialize", json!({ "_meta": meta(NEW) })).unwrap().is_modern());
        let mut with_tasks = meta(NEW);
        with_tasks["io.modelcontextprotocol/clientCapabilities"] =
            json!({ "extensions": { (TASKS_EXTENSION_ID): {} } });
        assert!(read(&new, "tools/list", json!({ "_meta": with_tasks })).unwrap().tasks);
    }

    #[test]
    fn a_list_that_changes_is_declared_only_where_it_is_heard() {
        let era = read(&[], "initialize", json!({ "protocolVersion": "2025-11-25" })).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(era.initialized(&headers)["capabilities"]["tools"], json!({}));
        headers.insert(TRANSPORT, "stdio".parse().unwrap());
        assert_eq!(era.initialized(&headers)["capabilities"]["tools"]["listChanged"], true);
        assert_eq!(discovered()["capabilities"]["tools"]["listChanged"], true);
    }

    #[test]
    fn headers_and_body_must_say_the_same() {
        let call = |headers: &[(&'static str, &str)], version: &str| {
            read(headers, "tools/call", json!({ "name": "files_list", "_meta": meta(version) })).unwrap_err()
        };
        let (mismatch, invalid) = (ErrorCode::HEADER_MISMATCH.0, ErrorCode::INVALID_PARAMS.0);
        assert_eq!(call(&[], NEW), mismatch);
        assert_eq!(call(&[(VERSION, NEW)], NEW), mismatch);
        assert_eq!(call(&[(VERSION, NEW), (METHOD, "tools/list")], NEW), mismatch);
        assert_eq!(call(&[(VERSION, NEW), (METHOD, "tools/call")], NEW), mismatch);
        let named = |name| [(VERSION, NEW), (METHOD, "tools/call"), (NAME, name)];
        assert_eq!(call(&named("files_stat"), NEW), mismatch);
        assert_eq!(call(&named("=?base64?!?="), NEW), mismatch);
        assert_eq!(call(&[&named("files_list")[..], &[(NAME, "files_list")]].concat(), NEW), mismatch);
        assert_eq!(call(&named("files_list"), "2025-11-25"), mismatch);
        // An older dialect needs no such headers, and yet they may not name something else.
        let old =
            |headers: &[(&'static str, &str)]| read(headers, "tools/call", json!({ "name": "files_list" }));
        assert!(old(&[(METHOD, "tools/call"), (NAME, "files_list")]).is_ok() && old(&[]).is_ok());
        for wrong in [(METHOD, "tools/list"), (NAME, "files_stat")] {
            assert_eq!(old(&[wrong]).unwrap_err(), mismatch, "{wrong:?}");
        }
        let right = json!({ "name": "files_list", "_meta": meta(NEW) });
        for name in ["files_list", "=?base64?ZmlsZXNfbGlzdA==?="] {
            assert!(read(&named(name), "tools/call", right.clone()).is_ok(), "{name}");
        }
        assert_eq!(read(&[(VERSION, NEW), (METHOD, "ping")], "ping", json!({})).unwrap_err(), invalid);
        assert_eq!(read(&[], "server/discover", json!({})).unwrap_err(), invalid);
        let other = json!({ "protocolVersion": "2025-06-18" });
        let unequal = read(&[(VERSION, "2025-11-25")], "initialize", other).unwrap_err();
        assert_eq!(unequal, ErrorCode::INVALID_REQUEST.0);
    }

    #[test]
    fn an_unknown_version_gets_the_known_ones() {
        let mut headers = HeaderMap::new();
        headers.insert(VERSION, "2099-01-01".parse().unwrap());
        headers.insert(METHOD, "tools/list".parse().unwrap());
        let meta: Map<String, Value> = meta("2099-01-01").as_object().unwrap().clone();
        let error = Era::of(&headers, true, "tools/list", &Map::new(), &meta.into()).unwrap_err();
        assert_eq!(error.code, ErrorCode::UNSUPPORTED_PROTOCOL_VERSION);
        assert_eq!(error.data.unwrap()["supported"], json!(["2025-06-18", "2025-11-25", NEW]));
        let old = read(&[(VERSION, "1999-01-01")], "tools/list", json!({})).unwrap_err();
        assert_eq!(old, ErrorCode::UNSUPPORTED_PROTOCOL_VERSION.0);
    }

    #[test]
    fn older_results_have_no_newer_fields() {
        let result = json!({ "resultType": "complete", "ttlMs": 1, "cacheScope": "private", "tools": [] });
        let era = |version| Era { version, tasks: false };
        assert_eq!(era(ProtocolVersion::V_2025_11_25).dressed(result.clone()), json!({ "tools": [] }));
        assert_eq!(era(ProtocolVersion::V_2026_07_28).dressed(result.clone()), result);
    }
}
