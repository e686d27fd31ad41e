//! Tools with typed parameters: one struct is the schema and the reader.

use std::ops::Deref;

use effectd_contracts::{Failure, ProbeVerdict, ToolCall, ToolOutput, ToolSpec, Touch};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::params;
use crate::tool::Tool;
use crate::workspace::Workspace;

/// One call, with its parameters read.
pub struct Call<'c, P> {
    pub params: P,
    call: &'c ToolCall,
}

impl<P> Deref for Call<'_, P> {
    type Target = ToolCall;
    fn deref(&self) -> &ToolCall {
        self.call
    }
}

/// What the built-in tools implement. Each is a [`Tool`], whose functions are those of the same names here.
pub trait TypedTool: Sync {
    const ID: &'static str;
    const ALIASES: &'static [&'static str] = &[];

    /// All parameters but the space, which every request has.
    type Params: DeserializeOwned + JsonSchema;

    fn spec(&self) -> ToolSpec;
    fn example(&self) -> Value;

    /// Rules that a schema cannot say. They hold in every function that gets a [`Call`].
    fn check(&self, _: &Self::Params) -> Result<(), Failure> {
        Ok(())
    }
    fn touches(&self, _: &Self::Params) -> Option<Vec<Touch>> {
        None
    }
    fn reads(&self, _: &Self::Params) -> Vec<String> {
        Vec::new()
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Self::Params>) -> Result<ToolOutput, Failure>;

    /// A tool that only looks does the same. In a dry run the sandbox lets nothing be written.
    fn dry_run(
        &self,
        workspace: &Workspace<'_>,
        call: &Call<'_, Self::Params>,
    ) -> Result<ToolOutput, Failure> {
        self.run(workspace, call)
    }
    fn probe(&self, _: &Workspace<'_>, _: &Call<'_, Self::Params>) -> Result<ProbeVerdict, Failure> {
        Ok(ProbeVerdict::CannotSay)
    }
}

fn read<'c, T: TypedTool>(tool: &T, call: &'c ToolCall) -> Result<Call<'c, T::Params>, Failure> {
    let params = params::read(&call.params)?;
    tool.check(&params)?;
    Ok(Call { params, call })
}

impl<T: TypedTool> Tool for T {
    fn id(&self) -> &'static str {
        T::ID
    }
    fn spec(&self) -> ToolSpec {
        TypedTool::spec(self)
    }
    fn aliases(&self) -> &'static [&'static str] {
        T::ALIASES
    }
    fn example(&self) -> Value {
        TypedTool::example(self)
    }
    fn check(&self, params: &Map<String, Value>) -> Result<(), Failure> {
        TypedTool::check(self, &params::read(params)?)
    }
    fn touches(&self, params: &Map<String, Value>) -> Option<Vec<Touch>> {
        TypedTool::touches(self, &params::read(params).ok()?)
    }
    fn reads(&self, params: &Map<String, Value>) -> Vec<String> {
        params::read(params).map_or_else(|_| Vec::new(), |params| TypedTool::reads(self, &params))
    }
    fn run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        TypedTool::run(self, workspace, &read(self, call)?)
    }
    fn dry_run(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ToolOutput, Failure> {
        TypedTool::dry_run(self, workspace, &read(self, call)?)
    }
    fn probe(&self, workspace: &Workspace<'_>, call: &ToolCall) -> Result<ProbeVerdict, Failure> {
        TypedTool::probe(self, workspace, &read(self, call)?)
    }
}
