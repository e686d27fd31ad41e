//! `effectd policy …`: check, explain, replay and change the policy.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Mode, ReceiptId, SpaceId, SubjectId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::{Explanation, PolicyChange, PolicyView, RootChange};
use effectd_policy::replay::{Recorded, ReplaySummary, render, replay};
use effectd_policy::{Overlay, Policy, PolicyDir};
use hyper::Method;
use serde_json::json;

use super::receipt_filter::{PageQuery, ReceiptFilter, Since, each_page, since};
use super::{
    CliError, Common, Confirm, Depth, Form, eprint_line, is_in_process, line, mutation, post, print_json,
    receipt_ref, store, with_client,
};
use crate::error::{Error, chain};
use crate::exit::Exit;
use crate::host::policy_queries;

/// Check, explain, replay and change the policy
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd policy check\n  effectd policy explain examples/write_note.json"
)]
pub(super) struct PolicyCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compile a policy directory and test its examples
    ///
    /// Without DIR it also checks the roots of the spaces; the exit code is 69 if one cannot be used.
    #[command(after_help = "Example:\n  effectd policy check .effectd/policy")]
    Check {
        /// The directory [default: that of the state, with the changes made by commands]
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
        confirm: Confirm,
    },
    /// Explain why a request would be, or was, permitted or refused: every gate, its facts, and what would have to change
    #[command(after_help = "Examples:\n  effectd policy explain examples/write_note.json\n  \
        effectd policy explain 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
    Explain {
        /// The id of a receipt or action, or the file of a request
        #[arg(value_name = "RECEIPT|FILE")]
        what: String,
    },
    /// Evaluate past decisions under another policy, and list every verdict that would change
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
        #[arg(long, value_name = "NUMBER")]
        limit: Option<u64>,
    },
    /// Grant a consent
    #[command(after_help = "Example:\n  effectd policy grant-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes")]
    GrantConsent(Consent),
    /// Revoke a consent at once
    #[command(after_help = "Example:\n  effectd policy revoke-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes")]
    RevokeConsent(Consent),
    /// Set the mode of a tool for an organisation or an automation
    #[command(
        after_help = "Examples:\n  effectd policy set-mode --org home --tool files.write_text require_approval --yes\n  \
        effectd policy set-mode --automation nightly --tool files.write_text allow --yes"
    )]
    SetMode {
        /// The organisation, as named in the policy
        #[arg(long, value_name = "NAME", required_unless_present = "automation")]
        org: Option<String>,
        /// The automation; its mode overrides that of the organisation
        #[arg(long, value_name = "ID", conflicts_with = "org")]
        automation: Option<String>,
        /// The tool, or one named command: `command.run NAME`
        #[arg(long, value_name = "ID")]
        tool: String,
        /// allow, require_approval or deny; `files` restores what the policy's files say
        #[arg(value_name = "MODE", value_parser = mode)]
        mode: ModeWord,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, clap::Args)]
struct Consent {
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
    confirm: Confirm,
}

#[derive(Debug, Clone, Copy)]
struct ModeWord(Option<Mode>);

fn mode(text: &str) -> Result<ModeWord, String> {
    if text == "files" {
        return Ok(ModeWord(None));
    }
    serde_json::from_value(text.into()).map(|mode| ModeWord(Some(mode))).map_err(|error| error.to_string())
}

impl PolicyCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let done = match self.verb {
            Verb::Check { directory: Some(directory) } => compile(&directory)
                .map(|policy| print(&policy_queries::view(&policy, false), common.output))
                .map_err(CliError::from),
            Verb::Check { directory: None } => check(common).await,
            Verb::Reload { confirm } => reload(common, confirm).await,
            Verb::Explain { what } => explain(common, &what).await,
            Verb::Replay { with, since, limit } => replay_all(common, &with, (since, limit)).await,
            Verb::GrantConsent(consent) => {
                let (subject, space, purpose) = (consent.subject, consent.space, consent.purpose);
                let change = PolicyChange::GrantConsent { subject, space, purpose };
                make(common, change, consent.confirm).await
            }
            Verb::RevokeConsent(consent) => {
                let (subject, space, purpose) = (consent.subject, consent.space, consent.purpose);
                let change = PolicyChange::RevokeConsent { subject, space, purpose };
                make(common, change, consent.confirm).await
            }
            Verb::SetMode { org, automation, tool, mode: ModeWord(mode), confirm } => {
                let change = match automation {
                    Some(automation) => PolicyChange::SetAutomationMode { automation, tool, mode },
                    // clap requires `--org` or `--automation`.
                    None => PolicyChange::SetOrgMode { org: org.unwrap_or_default(), tool, mode },
                };
                make(common, change, confirm).await
            }
        };
        match done {
            // A faulty policy is a result of this command, not a fault of the machine.
            Err(CliError::Runtime(error @ Error::Policy(_))) => {
                eprint_line(&chain(&error));
                Ok(Exit::Usage)
            }
            done => done,
        }
    }
}

fn compile(directory: &Path) -> Result<Policy, Error> {
    // If the superuser runs this, the files are checked as for the daemon's user, who owns the parent folder.
    let euid = nix::unistd::geteuid();
    let around = std::fs::metadata(directory.join("..")).map(|metadata| metadata.uid());
    let daemon = if euid.is_root() { around.unwrap_or(0) } else { euid.as_raw() };
    let source = PolicyDir::load(directory, daemon).map_err(Box::new)?;
    Ok(Policy::compile(&source, &Overlay::default()).map_err(Box::new)?)
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

async fn reload(common: &Common, confirm: Confirm) -> Result<Exit, CliError> {
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
        let policy: PolicyView = client.call(Method::POST, "/v1/policy/reload", "").await?;
        mutation::report_receipt_id(policy.receipt_id.as_deref());
        Ok(Some(policy))
    });
    Ok(policy.await?.map_or(Exit::Usage, |policy| print(&policy, common.output)))
}

/// Shows how a change affects the policy, asks, and makes the change. The state is not locked while a person decides.
async fn make(common: &Common, change: PolicyChange, confirm: Confirm) -> Result<Exit, CliError> {
    let what = serde_json::to_value(&change).unwrap_or_default();
    let looked = with_client(common, Depth::Policy, async |client| {
        let tried: PolicyView = client.post("/v1/policy/changes?preview=true", &change).await?;
        let now: PolicyView = client.get("/v1/policy").await?;
        Ok((tried, now.digest))
    });
    let (tried, now) = looked.await?;
    let policy = if tried.in_force {
        tried
    } else {
        let says = [format!("policy: {}", store::words(&what)), format!("policy: {now} -> {}", tried.digest)];
        if !confirm.confirmed(&says) {
            return Ok(Exit::Usage);
        }
        post(common, Depth::Policy, "/v1/policy/changes", &change).await?
    };
    mutation::report_receipt_id(policy.receipt_id.as_deref());
    Ok(print(&policy, common.output))
}

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

async fn replay_all(
    common: &Common,
    with: &Path,
    (since, limit): (Option<Since>, Option<u64>),
) -> Result<Exit, CliError> {
    let policy = compile(with)?;
    let filter = ReceiptFilter { since, ..ReceiptFilter::default() };
    let summary = with_client(common, Depth::Store, async |client| {
        history(client, &policy, &filter, (limit, common.output)).await
    })
    .await?;
    let ReplaySummary { total, same, flips, unknowable } = summary;
    let value = json!({ "total": total, "same": same, "flips": flips, "unknowable": unknowable });
    if !print_json(common.output, &json!({ "summary": value })) {
        line(&summary.to_string());
    }
    Ok(Exit::Done)
}

/// Evaluates the history page by page, so that memory does not grow with it.
async fn history(
    client: &mut Client,
    policy: &Policy,
    filter: &ReceiptFilter,
    (limit, form): (Option<u64>, Form),
) -> Result<ReplaySummary, CliError> {
    let mut all = ReplaySummary::default();
    each_page(client, filter, PageQuery::OLDEST, |page| {
        let left = limit.map_or(u64::MAX, |limit| limit - all.total);
        let past =
            page.receipts.iter().filter_map(Recorded::of).take(usize::try_from(left).unwrap_or(usize::MAX));
        let replayed = replay(past, policy, |record, replayed| {
            let Some(text) = render(record, replayed) else {
                return;
            };
            // One value per changed verdict; the summary comes last.
            let value = json!({ "decision": record.id, "was": record.verdict, "text": text });
            if !print_json(form, &value) {
                line(&text);
            }
        });
        all.total += replayed.total;
        all.same += replayed.same;
        all.flips += replayed.flips;
        all.unknowable += replayed.unknowable;
        Ok(limit.is_none_or(|limit| all.total < limit))
    })
    .await?;
    Ok(all)
}
