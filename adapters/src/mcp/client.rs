//! A client of one MCP server, for one call: it finds out the dialect, lists the tools, and calls one.
//!
//! That of 2026-07-28 has no state: each request says all. The older ones begin with `initialize`. The client declares no capability, so
//! a server has no reason to ask for anything; what it asks for anyway is refused, and its news are read over.

use effectd_contracts::connector::{Harvest, Harvested, RefusedTool};
use effectd_contracts::limits::{CONNECTOR_TOOLS_MAX, TOOL_REPLY_BYTES_MAX};
use effectd_contracts::{Code, Failure, Phase};
use serde_json::{Map, Value, json};

use super::message::{MODERN, Message, RpcError, printable, taken};

/// The dialects with `initialize`, the newest first. In all of them, lists and calls of tools are the same.
const OLDER: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Most pages of one list.
const PAGES_MAX: usize = 56;
/// Longest cursor: the next request must have room for it.
const CURSOR_BYTES_MAX: usize = 65_536;
/// JSON-RPC errors that only a server of 2026-07-28 gives: a wrong header, a missing capability, an unsupported version.
const MODERN_ERRORS: [i64; 3] = [-32_020, -32_021, UNSUPPORTED];
const UNSUPPORTED: i64 = -32_022;

/// The way to a server.
pub(super) trait Transport {
    /// Sends a message, and waits for its answer if it wants one.
    fn send(&mut self, message: &Message<'_>, dialect: &Dialect) -> Result<Value, Trouble>;

    /// Forgets a session that the server has given: `initialize` begins a new one.
    fn begin_anew(&mut self) {}
}

/// Why there is no result.
#[derive(Debug)]
pub(super) enum Trouble {
    /// No answer that means anything.
    Failed(Failure),
    /// The server answered with an error.
    Rpc(RpcError),
    /// The server answered with this status, and not in JSON-RPC.
    Status(u16),
    /// The server has forgotten the session.
    SessionGone,
}

pub(super) fn failed(why: impl Into<String>) -> Failure {
    Failure::new(Code::ToolFailed, Phase::Dispatch, why)
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Trouble {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Rpc(RpcError { number, message, .. }) => {
                // What was asked could not be read, or is not there: nothing has run.
                let is_refused = matches!(number, -32_700 | -32_602..=-32_600);
                let code = if is_refused { Code::ParamsInvalid } else { Code::ToolFailed };
                let why = format!("the server answered with error {number}: {message}");
                Failure::new(code, Phase::Dispatch, why)
            }
            Self::Status(status) => {
                let code = if matches!(status, 429 | 503) { Code::ToolBusy } else { Code::ToolFailed };
                let hint = match status {
                    401 | 403 => "; it wants to know who asks: check the connection's credential",
                    404 | 405 => "; is this the path that takes MCP's messages?",
                    _ => "",
                };
                Failure::new(code, Phase::Dispatch, format!("the server answered with status {status}{hint}"))
            }
            Self::SessionGone => failed("the server forgets each session at once"),
        }
    }

    /// Whether a server may have said this because it speaks another dialect.
    fn may_mean_dialect(&self) -> bool {
        match self {
            Self::Rpc(error) => !MODERN_ERRORS.contains(&error.number) || error.number == UNSUPPORTED,
            Self::Status(status) => matches!(status, 400 | 404 | 405 | 406 | 415 | 422 | 501),
            Self::Failed(_) | Self::SessionGone => false,
        }
    }
}

/// How a server wants to be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dialect {
    Modern,
    /// It is not known yet: `initialize` is on its way.
    Beginning,
    Older(&'static str),
}

impl Dialect {
    pub(super) fn version(&self) -> &'static str {
        match self {
            Self::Modern => MODERN,
            Self::Beginning => OLDER[0],
            Self::Older(version) => version,
        }
    }

    /// The dialect of this version, if effectd speaks it.
    pub(super) fn of(version: &str) -> Option<Self> {
        if version == MODERN {
            return Some(Self::Modern);
        }
        OLDER.into_iter().find(|known| *known == version).map(Self::Older)
    }
}

/// What a message says beside its parameters, for programs on the way.
#[derive(Debug, Clone, Default)]
struct Named<'a> {
    tool: Option<&'a str>,
    headers: Vec<(String, String)>,
}

pub(super) struct Client<T> {
    transport: T,
    dialect: Dialect,
    /// Whether the server has answered in this dialect.
    is_sure: bool,
    next_id: u64,
    /// How the server calls itself.
    server: String,
    /// Whether a session was lost already.
    renewed: bool,
}

impl<T: Transport> Client<T> {
    /// A client that has greeted the server, or need not: `known` is the dialect of a process that has been greeted before.
    pub(super) fn new(transport: T, known: Option<Dialect>, next_id: u64) -> Self {
        let is_sure = known.is_some();
        let dialect = known.unwrap_or(Dialect::Modern);
        Self { transport, dialect, is_sure, next_id, server: String::new(), renewed: false }
    }

    pub(super) fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(super) fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Finds out how the server wants to be spoken to. `hint` is what it spoke when it was listed: with a right one, a server of
    /// 2026-07-28 need not be asked.
    pub(super) fn greet(&mut self, hint: Option<&str>) -> Result<(), Failure> {
        if self.is_sure {
            return Ok(());
        }
        match hint.and_then(Dialect::of) {
            Some(Dialect::Modern) => {
                self.dialect = Dialect::Modern;
                Ok(())
            }
            Some(Dialect::Older(_)) => match self.initialize() {
                Err(trouble) if trouble.may_mean_dialect() => self.discover().map_err(Trouble::failure),
                begun => begun.map_err(Trouble::failure),
            },
            Some(Dialect::Beginning) | None => match self.discover() {
                Err(trouble) if trouble.may_mean_dialect() => self.initialize().map_err(Trouble::failure),
                found => found.map_err(Trouble::failure),
            },
        }
    }

    fn discover(&mut self) -> Result<(), Trouble> {
        self.dialect = Dialect::Modern;
        let discover = |client: &mut Self| client.ask("server/discover", Map::new(), &Named::default());
        let found = match discover(self) {
            // It refuses the version, and says that it speaks it: once more.
            Err(Trouble::Rpc(error)) if error.number == UNSUPPORTED && error.offers_modern => discover(self)?,
            found => found?,
        };
        let versions = found["supportedVersions"].as_array().into_iter().flatten();
        let mut versions = versions.filter_map(Value::as_str);
        if !versions.any(|version| version == MODERN) {
            return self.initialize();
        }
        self.is_sure = true;
        self.name(&found["_meta"]["io.modelcontextprotocol/serverInfo"]);
        Ok(())
    }

    fn initialize(&mut self) -> Result<(), Trouble> {
        self.dialect = Dialect::Beginning;
        self.transport.begin_anew();
        let client = json!({ "name": "effectd", "version": env!("CARGO_PKG_VERSION") });
        let params = json!({ "protocolVersion": OLDER[0], "capabilities": {}, "clientInfo": client });
        let Value::Object(params) = params else { return Err(failed("no parameters").into()) };
        let begun = self.ask("initialize", params, &Named::default())?;
        let version = begun["protocolVersion"].as_str().unwrap_or_default();
        match Dialect::of(version) {
            Some(older @ Dialect::Older(_)) => self.dialect = older,
            _ => {
                let why = format!("the server speaks {:?}, which effectd does not", printable(version));
                return Err(failed(why).into());
            }
        }
        self.is_sure = true;
        self.name(&begun["serverInfo"]);
        let told = Message {
            id: None,
            method: "notifications/initialized",
            name: None,
            params: Map::new(),
            headers: Vec::new(),
        };
        self.transport.send(&told, &self.dialect).map(drop)
    }

    fn name(&mut self, info: &Value) {
        let part = |name: &str| printable(info[name].as_str().unwrap_or_default());
        self.server = format!("{} {}", part("name"), part("version")).trim().to_owned();
    }

    fn ask(
        &mut self,
        method: &str,
        mut params: Map<String, Value>,
        named: &Named<'_>,
    ) -> Result<Value, Trouble> {
        let id = self.next_id;
        self.next_id += 1;
        if self.dialect == Dialect::Modern {
            let client = json!({ "name": "effectd", "version": env!("CARGO_PKG_VERSION") });
            let meta = json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": client,
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            params.insert("_meta".to_owned(), meta);
        }
        let Named { tool: name, headers } = named.clone();
        self.transport.send(&Message { id: Some(id), method, name, params, headers }, &self.dialect)
    }

    /// A request after the greeting. A session that is lost is begun anew, once; then the request is sent again, since the server has
    /// refused it.
    fn request(
        &mut self,
        method: &str,
        params: Map<String, Value>,
        named: &Named<'_>,
    ) -> Result<Value, Trouble> {
        let answer = self.ask(method, params.clone(), named);
        let was_sure = self.is_sure;
        let trouble = match answer {
            Ok(result) => {
                self.is_sure = true;
                return Ok(result);
            }
            Err(trouble) => trouble,
        };
        let is_lost = matches!(trouble, Trouble::SessionGone) && !self.renewed;
        // Otherwise the hint was wrong.
        if !is_lost && (was_sure || !trouble.may_mean_dialect()) {
            return Err(trouble);
        }
        self.renewed |= is_lost;
        self.initialize()?;
        self.ask(method, params, named)
    }

    /// The tools of each page, until `take` has enough.
    fn list(&mut self, mut take: impl FnMut(Vec<Value>) -> Result<bool, Failure>) -> Result<(), Failure> {
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let params = cursor.iter().map(|cursor| ("cursor".to_owned(), Value::from(cursor.as_str())));
            let page = self.request("tools/list", params.collect(), &Named::default());
            let mut page = page.map_err(Trouble::failure)?;
            let Value::Array(tools) = taken(&mut page, "tools") else {
                return Err(failed("the server answers tools/list without a list of tools"));
            };
            if take(tools)? {
                return Ok(());
            }
            let Value::String(next) = taken(&mut page, "nextCursor") else {
                return Ok(());
            };
            if next.len() > CURSOR_BYTES_MAX {
                return Err(failed("the server's mark for the next page is too long"));
            }
            if cursor.replace(next) == cursor {
                return Err(failed("the server's list has no end: it gives the same page again"));
            }
        }
        Err(failed(format!("the server's list has more than {PAGES_MAX} pages")))
    }

    /// All that the server lists.
    pub(super) fn harvest(&mut self) -> Result<Harvest, Failure> {
        let (mut tools, mut refused, mut bytes) = (Vec::new(), Vec::new(), 0);
        self.list(|page| {
            for tool in page {
                bytes += tool.to_string().len();
                match read_tool(tool) {
                    Ok(tool) => tools.push(tool),
                    Err(tool) => refused.push(tool),
                }
            }
            if tools.len() + refused.len() > CONNECTOR_TOOLS_MAX || bytes > TOOL_REPLY_BYTES_MAX / 2 {
                let most = TOOL_REPLY_BYTES_MAX / 2;
                let why = format!("the server lists more than {CONNECTOR_TOOLS_MAX} tools or {most} bytes");
                return Err(failed(why));
            }
            Ok(false)
        })?;
        let (protocol, server) = (self.dialect.version().to_owned(), self.server.clone());
        let mut harvest = Harvest { protocol, server, tools, refused };
        harvest.bound();
        Ok(harvest)
    }

    /// What the server says now about one tool; `None` if it lists none of this name.
    pub(super) fn find(&mut self, name: &str) -> Result<Option<Harvested>, Failure> {
        let mut found = None;
        self.list(|page| {
            let tool = page.into_iter().find(|tool| tool["name"].as_str() == Some(name));
            found = tool.and_then(|tool| read_tool(tool).ok());
            Ok(found.is_some())
        })?;
        Ok(found)
    }

    /// Calls a tool. `headers` repeat some of the arguments.
    pub(super) fn call(
        &mut self,
        name: &str,
        arguments: &Map<String, Value>,
        headers: Vec<(String, String)>,
    ) -> Result<Value, Failure> {
        let params = [("name", Value::from(name)), ("arguments", Value::Object(arguments.clone()))];
        let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let named = Named { tool: Some(name), headers };
        self.request("tools/call", params, &named).map_err(Trouble::failure)
    }
}

/// Reads one tool of a list.
fn read_tool(mut tool: Value) -> Result<Harvested, RefusedTool> {
    let name = tool["name"].as_str().unwrap_or_default().to_owned();
    let refused = |why: &str| Err(RefusedTool { name: name.clone(), why: why.to_owned() });
    let mut text = |name: &str| match tool.get_mut(name).map(Value::take) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(()),
    };
    let (Ok(title), Ok(description)) = (text("title"), text("description")) else {
        return refused("its title or description is no text");
    };
    let Value::Object(mut rest) = tool else { return refused("it is no object") };
    let input_schema = rest.remove("inputSchema").unwrap_or_default();
    let annotations = match rest.remove("annotations") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(annotations)) => annotations,
        Some(_) => return refused("its annotations are no object"),
    };
    let output_schema = rest.remove("outputSchema").filter(|schema| !schema.is_null());
    Ok(Harvested { name, title, description, input_schema, output_schema, annotations })
}
