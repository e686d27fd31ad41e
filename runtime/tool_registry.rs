//! The tools of this program: the built-in ones, and those of a program that embeds effectd.
//!
//! A tool's code runs only in the sandbox's child, which is this same program executed again. So both sides must know the same
//! tools: the child by [`init`], the pipeline by [`crate::EffectdBuilder::tools`], whose default is the tools of [`init`].

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use effectd_actors::services::egress::Egress;
use effectd_actors::{Definition, Registry, RegistryError, Source};
use effectd_adapters::limits::CALL_BYTES_MAX;
use effectd_adapters::{Tool, ToolChannel, Workspace, answer, http, postgres};
use effectd_contracts::access::{DATABASE_SOURCE, HTTP_SOURCE, is_wired};
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{ToolCall, ToolId, ToolSpec, json};
use effectd_egress::{Broker, BrokerConfig};
use effectd_policy::{Overlay, Policy, PolicyError, Source as PolicySource};
use effectd_sandbox::ChildCtx;

/// Tools of an embedding program.
pub type Tools = &'static [&'static dyn Tool];

static OWN: OnceLock<Tools> = OnceLock::new();

/// Call this first in `main`, before any thread starts, with the program's own tools (`&[]` for none).
///
/// In an ordinary process it returns at once. In a process that the sandbox started it never returns: the tools run there.
/// A tool of the program cannot take the id of a built-in one.
pub fn init(own: Tools) {
    // A second call changes nothing; a zygote never makes one.
    let _ = OWN.set(own);
    effectd_egress::init();
    effectd_sandbox::init_with_warm_up(dispatch, Some(WARM_UP));
}

/// A small dry run of the most common tool. The zygote runs it once, so that children start with warm code.
const WARM_UP: &[u8] = br#"{
    "tool_id": "files.write_text", "mode": "dry_run", "space_id": "private:nobody",
    "params": { "path": "tmp/nothing", "text": "", "space_id": "private:nobody" },
    "timeout_ms": 1, "trace_id": "00000000000000000000000000000001"
}"#;

/// How a reserved call begins that renders templates: `effectd_automations::templates::RENDER`. No tool of a program can take its name.
const RENDERS: &[u8] = br#"{"tool_id":"effectd.render","#;

/// The tools given to [`init`].
pub(crate) fn own() -> Tools {
    OWN.get().copied().unwrap_or_default()
}

fn dispatch(context: &ChildCtx, request: &[u8]) -> Vec<u8> {
    if request.starts_with(RENDERS)
        && let Ok(call) = json::parse::<ToolCall>(request, CALL_BYTES_MAX)
    {
        // Cannot fail: a reply is plain data with text keys.
        return serde_json::to_vec(&effectd_automations::templates::answer(call)).unwrap_or_default();
    }
    let root = context.workspace_path().to_str().unwrap_or(".");
    let line = Line(context);
    let workspace = Workspace::new(context.workspace(), context.tmp());
    let workspace = workspace.named(root).with_programs(context.programs()).with_side_channel(&line);
    let own = own();
    if !own.is_empty()
        && let Ok(call) = json::parse::<ToolCall>(request, CALL_BYTES_MAX)
        && !is_built_in(&call)
        && let Some(tool) = own.iter().find(|tool| tool.id() == call.tool_id.as_str())
    {
        // Cannot fail: a reply is plain data with text keys.
        return serde_json::to_vec(&answer(*tool, &workspace, &call)).unwrap_or_default();
    }
    effectd_adapters::dispatch(&workspace, request)
}

/// The side channel of a call, for its tool.
#[derive(Debug)]
struct Line<'a>(&'a ChildCtx);

impl ToolChannel for Line<'_> {
    fn send_piece(&self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        self.0.send_piece(stream, bytes)
    }

    fn receive_piece(&self) -> io::Result<Vec<u8>> {
        self.0.receive_piece()
    }
}

fn is_built_in(call: &ToolCall) -> bool {
    effectd_adapters::all().iter().any(|tool| tool.id() == call.tool_id.as_str())
}

/// All built-in tools and the program's own. An id that is already taken is an error, so that no tool replaces a built-in one.
pub fn registry(own: Tools) -> Result<Registry, RegistryError> {
    let built_in = effectd_adapters::all().iter().map(|tool| (Source::Core, *tool));
    let own = own.iter().map(|tool| (Source::Provider, *tool));
    let definitions = built_in.chain(own).map(|(source, tool)| definition(source, tool));
    let (registry, mut refused) = Registry::assemble(definitions.collect());
    match refused.pop() {
        Some(error) => Err(error),
        None => Ok(registry),
    }
}

/// Compiles a policy. Its examples are tried with the registered tools; one without parameters fits every schema. Tools of connectors
/// are registered only while the daemon runs, so an example always describes them itself.
pub(crate) fn compile_policy(
    source: &PolicySource,
    overlay: &Overlay,
    registry: &Registry,
) -> Result<Policy, PolicyError> {
    Policy::compile_with(source, overlay, &|id, params| {
        // An example about a connection's tool means the same before the connection is there, as at the start, and after it is gone.
        let of_connection = is_wired(id.source()).then(|| tools_of_connection(id.source()));
        let of_connection = Registry::assemble(of_connection.unwrap_or_default()).0;
        let is_listed = id.source().starts_with(CONNECTOR_SOURCE);
        let tool = registry.get(id).filter(|_| !is_listed).or_else(|| of_connection.get(id))?;
        let fits = if params.is_empty() { Ok(()) } else { tool.check_params(params) };
        Some(fits.map(|()| tool.spec().clone()).map_err(|failure| failure.message))
    })
}

/// The description of a tool for the pipeline.
fn definition(source: Source, tool: &'static dyn Tool) -> Definition {
    let spec = tool.spec();
    let example = tool.example();
    let example = example.as_object().cloned().unwrap_or_default();
    let aliases = tool.aliases().iter().filter_map(|alias| ToolId::new(*alias).ok());
    let says_what_it_touches = tool.touches(&example).is_some();
    let mut definition = Definition::new(source, spec, Arc::new(|params| tool.check(params)));
    definition.aliases = aliases.collect();
    definition.reads = Some(Arc::new(|params| tool.reads(params)));
    definition.only_reads = Some(Arc::new(|exchange| tool.only_reads(exchange)));
    definition.example = example;
    if says_what_it_touches {
        definition.touches = Some(Arc::new(|params| tool.touches(params).unwrap_or_default()));
    }
    definition
}

/// The tools of a connection: effectd's own. Those of a service have its name, the others that of the connection.
pub(crate) fn tools_of_connection(source: &str) -> Vec<Definition> {
    let is_database = source.starts_with(DATABASE_SOURCE);
    if !is_database && !source.starts_with(HTTP_SOURCE) {
        let of_source = effectd_adapters::services().iter().filter(|service| service.source == source);
        let tools = of_source.flat_map(|service| service.tools.iter().map(|tool| (service.guide, *tool)));
        let described = |(guide, tool)| Definition { guide: Some(guide), ..definition(Source::Core, tool) };
        return tools.map(described).collect();
    }
    let named = |tool: &'static dyn Tool, action: &str| {
        let id = ToolId::new(format!("{source}.{action}")).ok()?;
        let of_connection = definition(if is_database { Source::Db } else { Source::Core }, tool);
        Some(Definition { spec: ToolSpec { tool_id: id, ..of_connection.spec }, ..of_connection })
    };
    let tools = match is_database {
        true => vec![
            named(&postgres::RunQuery, "run_query")
                .map(|query| Definition { guide: Some(postgres::GUIDE), ..query }),
        ],
        false => vec![named(&http::Read, "read"), named(&http::Request, "request")],
    };
    tools.into_iter().flatten().collect()
}

/// The way out of this program, which is its own broker. Where it listens itself, no connection leads.
pub fn egress(exe: &Path, own: Vec<SocketAddr>) -> Arc<Egress> {
    let broker = Broker::new(BrokerConfig { exe: exe.to_owned(), own });
    Egress::new(Arc::new(broker), Arc::new(tools_of_connection))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::os::fd::AsFd;

    use effectd_contracts::ToolReply;

    use super::*;

    /// A rule for each public parameter of each tool, by the type in the tool's schema: what is missing in the Cedar schema, or has
    /// another type there, does not compile.
    #[test]
    fn rules_can_use_every_public_parameter() {
        let registry = registry(&[]).unwrap();
        let mut rules = String::new();
        let of_services = effectd_adapters::services().iter().flat_map(|service| service.tools);
        let own = registry.iter().map(|tool| tool.spec().clone());
        for spec in own.chain(of_services.map(|tool| tool.spec())) {
            for (name, field) in spec.params_schema["properties"].as_object().unwrap() {
                if name == "space_id" || !spec.is_public_param(name) {
                    continue;
                }
                let condition = match field["type"].as_str() {
                    Some("integer") => format!("context.params.{name} > 0"),
                    Some("boolean") => format!("context.params.{name}"),
                    Some(_) | None => format!("context.params.{name} like \"a*\""),
                };
                let head = "forbid (principal, action, resource)";
                rules += &format!("{head} when {{ context.params has {name} && {condition} }};\n");
            }
        }
        let source = PolicySource::new("version = 1", [("rules.cedar".to_owned(), rules)]);
        let policy = compile_policy(&source, &Overlay::default(), &registry);
        assert!(policy.is_ok_and(|policy| policy.rules() > 30));
    }

    #[test]
    fn an_example_needs_no_connection() {
        let example = |params: &str| {
            format!(
                "version = 1\n[[examples]]\nname = \"a read\"\nprincipal = \"user://a\"\nsubject = \"agent://a\"\n\
                 space = \"shared:a\"\ntool = \"http.crm.read\"\nparams = {params}\nexpect = \"deny\"\n"
            )
        };
        let compiled = |params: &str| {
            let source = PolicySource::new(example(params), []);
            compile_policy(&source, &Overlay::default(), &registry(&[]).unwrap()).map(drop)
        };
        assert!(compiled("{ path = \"/v1\", space_id = \"shared:a\" }").is_ok());
        let error = compiled("{ path = 7, space_id = \"shared:a\" }").unwrap_err();
        assert!(error.to_string().contains("/path"), "{error}");
    }

    /// A registry compiles these schemas when they are first used, but those of other tools at once.
    #[test]
    fn every_schema_of_a_built_in_tool_compiles() {
        let all = effectd_adapters::all().iter().map(|tool| definition(Source::Provider, *tool));
        let (registry, refused) = Registry::assemble(all.collect());
        assert!(refused.is_empty() && registry.iter().count() > 0, "{refused:?}");
    }

    #[test]
    fn what_warms_up_is_a_call_that_changes_nothing() {
        let space = tempfile::tempdir().unwrap();
        let root = File::open(space.path()).unwrap();
        let workspace = Workspace::new(root.as_fd(), root.as_fd());
        let reply = effectd_adapters::dispatch(&workspace, WARM_UP);
        let reply: ToolReply = serde_json::from_slice(&reply).unwrap();
        assert!(matches!(&reply, ToolReply::Done(output) if output.result["dry_run"] == true), "{reply:?}");
        assert_eq!(space.path().read_dir().unwrap().count(), 0);
    }
}
