//! `effectd policy …`: show, check, explain, replay and change the policy.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{
    ActionRequest, Band, Clock, Mode, PolicyList, ReceiptId, SpaceId, SubjectId, SystemClock,
};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::{
    Explanation, PolicyChange, PolicyFile, PolicyFiles, PolicyView, ReplayChange, ReplayView, RootChange,
    ShadowFiles, ShadowFlip, ShadowGroup, ShadowView,
};
use effectd_policy::{Overlay, Policy, PolicyDir, Source, SourceFile};
use hyper::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use similar::TextDiff;

use super::mutation::{ChangeArgs, Terms};
use super::progress::Bar;
use super::receipt_filter::{ReceiptFilter, Since, since};
use super::{
    CliError, Common, Confirm, Depth, Form, eprint_line, get, is_in_process, line, mutation, post,
    print_json, receipt_ref, state_dir_of, store, with_client,
};
use crate::error::Error;
use crate::exit::Exit;
use crate::host::policy_queries;
use crate::tool_registry;

/// Show, check, explain, replay and change the policy
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  effectd policy check\n  effectd policy explain examples/write_note.json"
)]
pub(super) enum PolicyCommand {
    /// Show the policy in force: its files, the changes made by commands, and faults of the files on disk
    #[command(after_help = "Examples:\n  effectd policy show\n  effectd policy show -o json")]
    Show,
    /// Show how a policy directory differs from the files in force, line by line
    ///
    /// The exit code is 1 if it differs.
    #[command(after_help = "Examples:\n  effectd policy diff\n  effectd policy diff policy.new")]
    Diff {
        /// The directory [default: that of the state]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// List or take back the changes that commands made beside the policy's files
    #[command(subcommand)]
    Overlay(OverlayVerb),
    /// Compile a policy directory and test its examples
    ///
    /// The changes made by commands are laid over. Without DIR it also checks the roots of the spaces; the exit code is 69 if one cannot
    /// be used.
    #[command(after_help = "Example:\n  effectd policy check .effectd/policy")]
    Check {
        /// The directory [default: that of the state]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Put the policy's files in force
    ///
    /// A running daemon notices changed files within a second. This command reports at once whether they are in force, and leaves a
    /// receipt with your name if it put them in force. If the root of a space was replaced by another folder, the space is refused until
    /// you confirm the change here.
    #[command(after_help = "Example:\n  effectd policy reload --yes")]
    Reload {
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Explain why a request would be, or was, permitted or refused: every gate, its facts, and what would have to change
    #[command(after_help = "Examples:\n  effectd policy explain examples/write_note.json\n  \
        effectd policy explain 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    Explain {
        /// The id of a receipt or action, or the file of a request
        #[arg(value_name = "RECEIPT|FILE")]
        what: String,
    },
    /// Evaluate past decisions under another policy, and show which verdicts would change
    ///
    /// The changes made by commands are laid over the other policy. Verdicts that change alike are one line; `-o jsonl` has a line for
    /// each.
    #[command(
        after_help = "Example:\n  effectd policy replay --since 2026-01-01T00:00:00Z --with policy.new"
    )]
    Replay {
        /// The other policy directory
        #[arg(long, value_name = "DIR")]
        with: PathBuf,
        /// Only decisions from this time on: 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<Since>,
        /// Maximum of decisions, oldest first
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Let a candidate policy judge each live decision beside the policy in force, or show what it has judged
    ///
    /// The candidate decides nothing. It is checked like `policy check DIR`, and stays until `--off`, also after a restart. The changes
    /// made by commands are laid over it, too.
    #[command(
        after_help = "Examples:\n  effectd policy shadow policy.new --yes\n  effectd policy shadow\n  \
        effectd policy shadow --off --yes"
    )]
    Shadow {
        /// The candidate's directory; without it, show what the candidate has judged
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
        /// End the candidate
        #[arg(long, conflicts_with = "directory")]
        off: bool,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Grant a consent
    #[command(after_help = "Example:\n  effectd policy grant-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes")]
    GrantConsent(Consent),
    /// Revoke a consent at once
    #[command(after_help = "Example:\n  effectd policy revoke-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes")]
    RevokeConsent(Consent),
    /// Set the mode of a tool for an organisation
    #[command(
        after_help = "Examples:\n  effectd policy set-mode --org home --tool files.write_text require_approval --yes\n  \
            effectd policy set-mode --org home --tool files.write_text deny --for 30m --yes"
    )]
    SetMode {
        /// The organisation, as named in the policy
        #[arg(long, value_name = "NAME")]
        org: String,
        /// The tool, or one named command: `command.run NAME`
        #[arg(long, value_name = "ID")]
        tool: String,
        /// allow, require_approval or deny; `files` restores what the policy's files say
        #[arg(value_name = "MODE", value_parser = or_files::<Mode>)]
        mode: OrFiles<Mode>,
        #[command(flatten)]
        terms: Terms,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Make a space stricter than the policy's files
    #[command(after_help = "Examples:\n  effectd policy set-band --space shared:household AMBER --yes\n  \
        effectd policy set-band --space shared:household files --yes")]
    SetBand {
        /// The space
        #[arg(long, value_name = "ID")]
        space: SpaceId,
        /// GREEN, AMBER (writes need an approval), RED (nearly everything does) or BLACK (nothing is allowed); `files` restores what the
        /// policy's files say. A band that is milder than theirs changes nothing
        #[arg(value_name = "BAND", value_parser = or_files::<Band>)]
        band: OrFiles<Band>,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Add a role, host, program or tool to a list of the policy, or strike it out
    #[command(
        after_help = "Examples:\n  effectd policy set-entry hosts api.example.org deny --reason incident --yes\n  \
        effectd policy set-entry roles planner deny --subject agent://planner@deviceA --yes\n  \
        effectd policy set-entry commands git files --yes"
    )]
    SetEntry {
        /// roles (of a subject), hosts, commands (programs, by name) or cross_space (tools)
        #[arg(value_name = "LIST", value_parser = word::<PolicyList>)]
        list: PolicyList,
        /// The role, host, program or tool, without `*`
        #[arg(value_name = "NAME")]
        entry: String,
        /// `allow` adds it; `deny` strikes it out, also if a pattern of the files has it; `files` restores what the policy's files say
        #[arg(value_name = "WORD", value_parser = or_files::<Allowed>)]
        allowed: OrFiles<Allowed>,
        /// With roles: the subject
        #[arg(long, value_name = "ID")]
        subject: Option<SubjectId>,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum OverlayVerb {
    /// List the changes
    #[command(after_help = "Example:\n  effectd policy overlay list")]
    List,
    /// Take all changes back: the files alone count again
    #[command(after_help = "Example:\n  effectd policy overlay clear --yes")]
    Clear {
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Consent {
    /// The subject
    #[arg(long, value_name = "ID")]
    subject: SubjectId,
    /// The space
    #[arg(long, value_name = "ID")]
    space: SpaceId,
    /// The purpose
    #[arg(long, value_name = "PURPOSE")]
    purpose: String,
    #[command(flatten)]
    args: ChangeArgs,
}

/// A word, or `files` for what the policy's files say.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrFiles<T>(Option<T>);

fn or_files<T: DeserializeOwned>(text: &str) -> Result<OrFiles<T>, String> {
    if text == "files" {
        return Ok(OrFiles(None));
    }
    word(text).map(|word| OrFiles(Some(word)))
}

fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Whether an entry is on its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Allowed {
    Allow,
    Deny,
}

impl PolicyCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let done = match self {
            Self::Show => show(common).await,
            Self::Diff { directory } => diff(common, directory.as_deref()).await,
            Self::Overlay(OverlayVerb::List) => list_overlay(common).await,
            Self::Overlay(OverlayVerb::Clear { args }) => {
                for change in overlay(files(common).await?)?.lines(SystemClock.now()) {
                    eprint_line(&format!("taken back: {change}"));
                }
                make(common, PolicyChange::Clear {}, args.terms()).await
            }
            Self::Check { directory: Some(directory) } => {
                // A directory can be checked where there is no state.
                let overlay = match with_client(common, Depth::Store, visible_overlay).await {
                    Err(
                        CliError::Runtime(Error::NoState(_))
                        | CliError::Client(ClientError::NoDaemon(_) | ClientError::NotPermitted(_)),
                    ) => Overlay::default(),
                    overlay => overlay?,
                };
                let policy = compile(&directory, &overlay).map_err(CliError::from);
                policy.map(|policy| print(&policy_queries::view(&policy, false), common.output))
            }
            Self::Check { directory: None } => check(common).await,
            Self::Reload { args } => reload(common, args.terms()).await,
            Self::Explain { what } => explain(common, &what).await,
            Self::Replay { with, since, limit } => replay_all(common, &with, (since, limit)).await,
            Self::Shadow { directory: Some(directory), args, .. } => {
                start_shadow(common, &directory, args).await
            }
            Self::Shadow { off: true, args, .. } => stop_shadow(common, args).await,
            Self::Shadow { .. } => shadow(common).await.map(|view| print_shadow(&view, common.output)),
            Self::GrantConsent(consent) => {
                let (subject, space, purpose) = (consent.subject, consent.space, consent.purpose);
                let change = PolicyChange::GrantConsent { subject, space, purpose };
                make(common, change, consent.args.terms()).await
            }
            Self::RevokeConsent(consent) => {
                let (subject, space, purpose) = (consent.subject, consent.space, consent.purpose);
                let change = PolicyChange::RevokeConsent { subject, space, purpose };
                make(common, change, consent.args.terms()).await
            }
            Self::SetMode { org, tool, mode: OrFiles(mode), terms, confirm } => {
                make(common, PolicyChange::SetOrgMode { org, tool, mode }, (terms, confirm)).await
            }
            Self::SetBand { space, band: OrFiles(band), args } => {
                make(common, PolicyChange::SetBand { space, band }, args.terms()).await
            }
            Self::SetEntry { list, entry, allowed: OrFiles(allowed), subject, args } => {
                let allowed = allowed.map(|allowed| allowed == Allowed::Allow);
                let change = PolicyChange::SetEntry { list, subject, entry, allowed };
                make(common, change, args.terms()).await
            }
        };
        match done {
            // A faulty policy is a result of this command, not a fault of the machine.
            Err(error @ CliError::Runtime(Error::Policy(_))) => Err(error.exiting(Exit::Usage)),
            done => done,
        }
    }
}

/// The policy in force with its files. Only the store is needed, so that a fault in the files on disk does not hide it.
async fn files(common: &Common) -> Result<PolicyFiles, CliError> {
    get(common, Depth::Store, "/v1/policy/files").await
}

/// The changes made by commands.
fn overlay(files: PolicyFiles) -> Result<Overlay, CliError> {
    let overlay = serde_json::from_value(files.overlay);
    overlay.map_err(|error| ClientError::Strange(format!("the changes cannot be read: {error}")).into())
}

/// The changes made by commands; none for somebody who may not see them.
async fn visible_overlay(client: &mut Client) -> Result<Overlay, CliError> {
    match client.get::<PolicyFiles>("/v1/policy/files").await {
        Err(ClientError::Refused(problem)) if problem.status == 403 => {
            eprint_line(&"note: without the changes made by commands, which only operators see");
            Ok(Overlay::default())
        }
        files => overlay(files?),
    }
}

async fn list_overlay(common: &Common) -> Result<Exit, CliError> {
    let overlay = overlay(files(common).await?)?;
    if !print_json(common.output, &overlay) {
        if overlay.is_empty() {
            eprint_line(&"the list is empty");
        }
        overlay.lines(SystemClock.now()).iter().for_each(|change| line(change));
    }
    Ok(Exit::Done)
}

async fn show(common: &Common) -> Result<Exit, CliError> {
    let (policy, files) = with_client(common, Depth::Store, async |client| {
        let policy: PolicyView = client.get("/v1/policy").await?;
        let files: PolicyFiles = client.get("/v1/policy/files").await?;
        Ok((policy, files))
    })
    .await?;
    if !print_json(
        common.output,
        &json!({ "policy": policy, "files": files.files, "overlay": files.overlay }),
    ) {
        for file in &files.files {
            line(&format!("# --- {}\n{}", file.name, file.text.trim_end()));
        }
        for change in overlay(files)?.lines(SystemClock.now()) {
            line(&format!("# overlay: {change}"));
        }
        line(&format!("# {}\n# {}", policy.summary, policy.digest));
    }
    report_faults(&policy);
    Ok(Exit::Done)
}

/// Says that the files on disk are not in force, and why.
fn report_faults(policy: &PolicyView) {
    if !policy.faults.is_empty() {
        eprint_line(&"note: the files on disk are not in force; an earlier policy decides");
    }
    policy.faults.iter().for_each(|fault| eprint_line(fault));
}

async fn diff(common: &Common, directory: Option<&Path>) -> Result<Exit, CliError> {
    let before = files(common).await?;
    let own = state_dir_of(common).join("policy");
    let after = read(directory.unwrap_or(&own))?;
    let mut names: Vec<&str> = before.files.iter().map(|file| file.name.as_str()).collect();
    names.extend(after.files().map(|file| file.name.as_str()));
    names.sort_unstable();
    names.dedup();
    let mut changed = Vec::new();
    for name in names {
        let old = before.files.iter().find(|file| file.name == name).map_or("", |file| file.text.as_str());
        let new = after.files().find(|file| file.name == name).map_or("", |file| file.text.as_str());
        if old != new {
            let (from, to) = (format!("in force/{name}"), format!("new/{name}"));
            let text = TextDiff::from_lines(old, new).unified_diff().header(&from, &to).to_string();
            changed.push(json!({ "file": name, "diff": text }));
            if common.output == Form::Table {
                line(text.trim_end());
            }
        }
    }
    if !print_json(common.output, &changed) && changed.is_empty() {
        eprint_line(&"the files are those in force");
    }
    Ok(if changed.is_empty() { Exit::Done } else { Exit::Failed })
}

fn compile(directory: &Path, overlay: &Overlay) -> Result<Policy, Error> {
    let registry = tool_registry::registry(tool_registry::own())?;
    Ok(tool_registry::compile_policy(&read(directory)?, overlay, &registry).map_err(Box::new)?)
}

fn read(directory: &Path) -> Result<Source, Error> {
    // If the superuser runs this, the files are checked as for the daemon's user, who owns the parent folder.
    let euid = nix::unistd::geteuid();
    let around = std::fs::metadata(directory.join("..")).map(|metadata| metadata.uid());
    let daemon = if euid.is_root() { around.unwrap_or(0) } else { euid.as_raw() };
    Ok(PolicyDir::load(directory, daemon).map_err(Box::new)?)
}

fn print(policy: &PolicyView, form: Form) -> Exit {
    if !print_json(form, policy) {
        line(&format!("good: {}\n{}", policy.summary, policy.digest));
    }
    for warning in &policy.warnings {
        eprint_line(&format!("note: {warning}"));
    }
    for space in &policy.unusable {
        eprint_line(&format!("cannot be used: {space}"));
    }
    if policy.unusable.is_empty() { Exit::Done } else { Exit::Unavailable }
}

/// How a reload would change the roots of spaces.
fn root_changes(policy: &PolicyView) -> Vec<String> {
    let text = |change: &RootChange| {
        let after = change.after.as_deref().unwrap_or("none; it is created when the space is used");
        format!("root of {}: {} -> {after}", change.space_id, change.before)
    };
    policy.roots.iter().map(text).collect()
}

async fn check(common: &Common) -> Result<Exit, CliError> {
    let policy = with_client(common, Depth::Policy, async |client| {
        let policy: PolicyView = client.call(Method::POST, "/v1/policy/check", "").await?;
        if !policy.in_force {
            eprint_line(&"note: this is not in force yet; `effectd policy reload` puts it in force");
        }
        Ok(policy)
    });
    let policy = policy.await?;
    for root in root_changes(&policy) {
        eprint_line(&format!("note: {root}; `effectd policy reload` accepts it"));
    }
    Ok(print(&policy, common.output))
}

async fn reload(common: &Common, (terms, confirm): (Terms, Confirm)) -> Result<Exit, CliError> {
    let policy = with_client(common, Depth::Policy, async |client| {
        if is_in_process(client) {
            eprint_line(&"no daemon runs; the next start puts it in force");
        }
        let files: PolicyView = client.call(Method::POST, "/v1/policy/check", "").await?;
        let mut says = root_changes(&files);
        if !files.in_force {
            says.push(format!("policy: the current files -> {}", files.digest));
        }
        if says.is_empty() {
            // Without a daemon, a message was printed above.
            if !is_in_process(client) {
                eprint_line(&"there is nothing to change");
            }
            return Ok(Some(files));
        }
        if !confirm.confirmed(&says) {
            return Ok(None);
        }
        let policy: PolicyView =
            client.call(Method::POST, &format!("/v1/policy/reload{}", terms.first_query()), "").await?;
        mutation::report_receipt_id(policy.receipt_id.as_deref());
        Ok(Some(policy))
    });
    Ok(policy.await?.map_or(confirm.declined(), |policy| print(&policy, common.output)))
}

/// Shows how a change affects the policy, asks, and makes the change. The state is not locked while a person decides.
async fn make(
    common: &Common,
    change: PolicyChange,
    (terms, confirm): (Terms, Confirm),
) -> Result<Exit, CliError> {
    let mut what = serde_json::to_value(&change).unwrap_or_default();
    if let Some(lasts) = &terms.lasts {
        what["for"] = json!(lasts);
    }
    let path = |preview: bool| format!("/v1/policy/changes?preview={preview}{}", terms.query());
    let looked = with_client(common, Depth::Policy, async |client| {
        let tried: PolicyView = client.post(&path(true), &change).await?;
        let now: PolicyView = client.get("/v1/policy").await?;
        Ok((tried, now))
    });
    let (tried, now) = looked.await?;
    let policy = if tried.in_force {
        tried
    } else {
        let mut says = vec![format!("policy: {}", store::words(&what))];
        // The digest covers the end, which is counted from the moment of the change.
        if terms.lasts.is_none() {
            says.push(format!("policy: {} -> {}", now.digest, tried.digest));
        }
        says.extend(tried.warnings.iter().filter(|warning| !now.warnings.contains(warning)).cloned());
        if tried.released + tried.ended > 0 {
            let PolicyView { released, ended, .. } = &tried;
            says.push(format!(
                "pending approvals: {released} to start without a person, {ended} to be denied"
            ));
        }
        if !confirm.confirmed(&says) {
            return Ok(confirm.declined());
        }
        post(common, Depth::Policy, &path(false), &change).await?
    };
    mutation::report_receipt_id(policy.receipt_id.as_deref());
    Ok(print(&policy, common.output))
}

const SHADOW: &str = "/v1/policy/shadow";

async fn shadow(common: &Common) -> Result<ShadowView, CliError> {
    get(common, Depth::Policy, SHADOW).await
}

/// The files of another policy, as routes take them.
fn shadow_files(directory: &Path) -> Result<ShadowFiles, Error> {
    let file = |file: &SourceFile| PolicyFile { name: file.name.clone(), text: file.text.clone() };
    Ok(ShadowFiles { files: read(directory)?.files().map(file).collect() })
}

async fn start_shadow(common: &Common, directory: &Path, args: ChangeArgs) -> Result<Exit, CliError> {
    let (terms, confirm) = args.terms();
    let candidate = shadow_files(directory)?;
    let send = async |preview: bool| {
        let path = format!("{SHADOW}?preview={preview}{}", terms.query());
        post::<ShadowView>(common, Depth::Policy, &path, &candidate).await
    };
    let (now, tried) = (shadow(common).await?, send(true).await?);
    change_shadow(common, (now, tried), confirm, async || send(false).await).await
}

async fn stop_shadow(common: &Common, args: ChangeArgs) -> Result<Exit, CliError> {
    let (terms, confirm) = args.terms();
    let path = format!("{SHADOW}?preview=false{}", terms.query());
    let stop = async || {
        with_client(common, Depth::Policy, async |client| Ok(client.call(Method::DELETE, &path, "").await?))
            .await
    };
    change_shadow(common, (shadow(common).await?, ShadowView::default()), confirm, stop).await
}

/// Shows which candidate would follow, asks, and makes the change.
async fn change_shadow(
    common: &Common,
    (now, then): (ShadowView, ShadowView),
    confirm: Confirm,
    change: impl AsyncFnOnce() -> Result<ShadowView, CliError>,
) -> Result<Exit, CliError> {
    if now.digest == then.digest && now.fault.is_none() {
        eprint_line(&"there is nothing to change");
        return Ok(print_shadow(&now, common.output));
    }
    let word = |view: &ShadowView| match (&view.digest, &view.fault) {
        (Some(digest), Some(_)) => format!("{digest}, which cannot judge"),
        (Some(digest), None) => digest.clone(),
        (None, _) => "off".to_owned(),
    };
    if !confirm.confirmed(&[format!("candidate policy: {} -> {}", word(&now), word(&then))]) {
        return Ok(confirm.declined());
    }
    let view = change().await?;
    mutation::report_receipt_id(view.receipt_id.as_deref());
    Ok(print_shadow(&view, common.output))
}

fn print_shadow(view: &ShadowView, form: Form) -> Exit {
    if print_json(form, view) {
        return Exit::Done;
    }
    let ShadowView { decisions, same, flips, errors, .. } = view;
    let (Some(digest), Some(since), Some(counted)) = (&view.digest, &view.since, &view.counted_since) else {
        line("no candidate policy judges; `effectd policy shadow DIR` starts one");
        return Exit::Done;
    };
    let state = if view.on { "judges" } else { "has ended; it judged" };
    line(&format!("the candidate {digest} {state} since {since}"));
    line(&format!("{decisions} decisions since {counted}: {same} stay, {flips} flip, {errors} errors"));
    for ShadowGroup { tool_id, from, to, count } in &view.groups {
        line(&format!("{count:>6}  {from} -> {to}  {tool_id}"));
    }
    for flip in view.last.iter().take(SHADOW_SHOWN_MAX) {
        let ShadowFlip { at, action_id, from, to, rule, why, .. } = flip;
        let why = if why.is_empty() { rule } else { why };
        line(&format!("{at}  {action_id}  {from} -> {to}: {why}"));
    }
    if let Some(fault) = &view.fault {
        eprint_line(&format!("note: it cannot judge; `effectd policy shadow DIR` starts it again: {fault}"));
    }
    if let Some(error) = &view.error {
        eprint_line(&format!("note: the last error: {error}"));
    }
    Exit::Done
}

/// The flips that a table lists one by one: the groups above them should stay on the screen. JSON has more.
const SHADOW_SHOWN_MAX: usize = 10;

async fn explain(common: &Common, what: &str) -> Result<Exit, CliError> {
    let explained = if Path::new(what).is_file() {
        explain_request(common, Path::new(what)).await?
    } else {
        explain_receipt(common, what).await?
    };
    if explained.policy_changed {
        eprint_line(&"note: the policy has changed since; this is its decision now");
    }
    if !print_json(common.output, &explained) {
        line(explained.text.trim_end());
    }
    Ok(Exit::Done)
}

async fn explain_request(common: &Common, path: &Path) -> Result<Explanation, CliError> {
    post(common, Depth::Policy, "/v1/policy/explain", &read_request(path)?).await
}

async fn explain_receipt(common: &Common, id: &str) -> Result<Explanation, CliError> {
    let none =
        || Error::Request(format!("{id} is neither a file nor the id of a receipt or of an ended action"));
    let name = ReceiptId::new(id).map_err(|_| none())?;
    with_client(common, Depth::Policy, async |client| {
        let receipt = receipt_ref::find(client, &name).await?.ok_or_else(none)?;
        let id = percent_encoded(receipt.receipt_id.as_str());
        let path = format!("/v1/receipts/{id}/explanation");
        match client.get(&path).await {
            Err(ClientError::Refused(problem)) if problem.code == "receipt_unknown" => Err(none().into()),
            answer => Ok(answer?),
        }
    })
    .await
}

fn read_request(path: &Path) -> Result<ActionRequest, Error> {
    let unreadable = |why: String| Error::Request(format!("{} is no request: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if size > REQUEST_BYTES_MAX as u64 {
        return Err(unreadable(format!("at most {REQUEST_BYTES_MAX} bytes are allowed")));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    ActionRequest::parse(&bytes).map_err(|failure| unreadable(failure.message))
}

/// Asks page by page, so that memory does not grow with the history.
async fn replay_all(
    common: &Common,
    with: &Path,
    (since, limit): (Option<Since>, Option<u64>),
) -> Result<Exit, CliError> {
    let candidate = shadow_files(with)?;
    let filter = ReceiptFilter { since, ..ReceiptFilter::default() }.text();
    let path = format!("/v1/policy/replay?q={}", percent_encoded(&filter));
    let (mut all, mut groups) = (ReplayView::default(), BTreeMap::<String, (u64, String)>::new());
    let bar = Bar::new("replaying decisions");
    with_client(common, Depth::Store, async |client| {
        loop {
            let after = all.next.map(|next| format!("&after={next}")).unwrap_or_default();
            let left = limit.map(|limit| format!("&limit={}", limit - all.total)).unwrap_or_default();
            all.add(client.post::<ReplayView>(&format!("{path}{after}{left}"), &candidate).await?);
            for change in all.changes.drain(..) {
                // One value per changed verdict; the summary comes last.
                if print_json(common.output, &change) {
                    continue;
                }
                let ReplayChange { receipt_id, tool_id, from, to, rule, why, .. } = change;
                let rule = if rule.is_empty() { rule } else { format!(" ({rule})") };
                let why = if why.is_empty() { why } else { format!(": {why}") };
                let mut group = format!("{from} -> {to}{why}{rule}  {tool_id}");
                if groups.len() >= GROUPS_MAX && !groups.contains_key(&group) {
                    group = "other changes; -o jsonl has all".to_owned();
                }
                groups.entry(group).or_insert((0, receipt_id)).0 += 1;
            }
            bar.at(all.total, limit.unwrap_or(0));
            if all.next.is_none() || limit.is_some_and(|limit| all.total >= limit) {
                return Ok(());
            }
        }
    })
    .await?;
    drop(bar);
    for (group, (count, first)) in groups {
        line(&format!("{count:>6}  {group}, first {first}"));
    }
    let ReplayView { total, same, flips, unknowable, .. } = all;
    let value = json!({ "total": total, "same": same, "flips": flips, "unknowable": unknowable });
    if !print_json(common.output, &json!({ "summary": value })) {
        line(&all.to_string());
    }
    Ok(Exit::Done)
}

/// The groups of `policy replay`: more than a person reads. A reason may name a subject, of which there may be any number.
const GROUPS_MAX: usize = 500;
