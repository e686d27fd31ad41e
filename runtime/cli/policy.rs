//! `effectd policy …`: check, explain, replay and change what may happen. Through the daemon if one runs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_bus::Order;
use effectd_contracts::limits::REQUEST_BYTES_MAX;
use effectd_contracts::{ActionRequest, Mode, ReceiptId, SpaceId, SubjectId};
use effectd_gateway::client::{Client, ClientError, percent_encoded};
use effectd_gateway::views::{Explanation, PolicyChange, PolicyView, RootChange};
use effectd_policy::replay::{Recorded, ReplaySummary, render, replay};
use effectd_policy::{Overlay, Policy, PolicyDir};
use hyper::Method;
use serde_json::json;

use super::backend::{Trouble, is_alone, with_client};
use super::listing::{Since, Turn, Which, page, since};
use super::operate::{Confirm, tell_receipt};
use super::output::{Form, for_programs, line};
use super::{Common, complain, named};
use crate::error::Error;
use crate::exit::Exit;
use crate::judge;
use crate::runtime::Depth;

/// Check, explain, replay and change what may happen
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd policy check\n  effectd policy explain examples/write_note.json"
)]
pub(super) struct PolicyCommand {
    #[command(subcommand)]
    verb: Verb,
    /// How the answer is shown
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORM"
    )]
    output: Form,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read a policy directory and try its examples
    ///
    /// Without DIR it also looks at the roots of the spaces; the exit code is 69 if one cannot be used.
    #[command(after_help = "Example:\n  effectd policy check .effectd/policy")]
    Check {
        /// The directory [default: the state's own, with the changes made by commands]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Put the policy's files in force as they are now
    ///
    /// A running daemon notices changed files by itself within a second; this says at once whether they are in force, and leaves a
    /// receipt that names you if it was you who put them there. If the root of a space was replaced by another folder, the space is
    /// refused until you say here that it is meant.
    #[command(after_help = "Example:\n  effectd policy reload --yes")]
    Reload {
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Tell why a request would be, or was, permitted or refused: every gate, what it saw, what would have to change
    #[command(
        after_help = "Examples:\n  effectd policy explain examples/write_note.json\n  \
        effectd policy explain 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12"
    )]
    Explain {
        /// The id of a receipt or its action, or the file of a request
        #[arg(value_name = "RECEIPT|FILE")]
        what: String,
    },
    /// Judge past decisions by another policy, and list every verdict that would flip
    #[command(
        after_help = "Example:\n  effectd policy replay --since 2026-01-01T00:00:00Z --with policy.new"
    )]
    Replay {
        /// The policy directory to judge by
        #[arg(long, value_name = "DIR")]
        with: PathBuf,
        /// Only decisions from this time on: 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<Since>,
        /// At most so many decisions, the oldest first
        #[arg(long, value_name = "NUMBER")]
        limit: Option<u64>,
    },
    /// Give a consent
    #[command(
        after_help = "Example:\n  effectd policy grant-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes"
    )]
    GrantConsent(Consent),
    /// Take a consent back, at once
    #[command(
        after_help = "Example:\n  effectd policy revoke-consent --subject agent://planner@deviceA \
        --space shared:household --purpose tool:files.write_text --yes"
    )]
    RevokeConsent(Consent),
    /// Set an organisation's or an automation's mode of a tool
    #[command(
        after_help = "Examples:\n  effectd policy set-mode --org home --tool files.write_text require_approval --yes\n  \
        effectd policy set-mode --automation nightly --tool files.write_text allow --yes"
    )]
    SetMode {
        /// The organisation, as the policy names it
        #[arg(long, value_name = "NAME", required_unless_present = "automation")]
        org: Option<String>,
        /// The automation; its mode is above that of the organisation
        #[arg(long, value_name = "ID", conflicts_with = "org")]
        automation: Option<String>,
        /// The tool
        #[arg(long, value_name = "ID")]
        tool: String,
        /// allow, require_approval or deny; `files` goes back to what the files say
        #[arg(value_name = "MODE", value_parser = mode)]
        mode: ModeWord,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, clap::Args)]
struct Consent {
    /// Whose
    #[arg(long, value_name = "ID")]
    subject: SubjectId,
    /// Where
    #[arg(long, value_name = "ID")]
    space: SpaceId,
    /// What for
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
    serde_json::from_value(text.into())
        .map(|mode| ModeWord(Some(mode)))
        .map_err(|error| error.to_string())
}

impl PolicyCommand {
    pub(super) fn main(self, common: &Common) -> Exit {
        let form = self.output;
        super::block_on(async {
            let done = match self.verb {
                Verb::Check {
                    directory: Some(directory),
                } => compile(&directory)
                    .map(|policy| tell_policy(&judge::view(&policy, false), form))
                    .map_err(Trouble::from),
                Verb::Check { directory: None } => check(common, form).await,
                Verb::Reload { confirm } => reload(common, confirm, form).await,
                Verb::Explain { what } => explain(common, &what, form).await,
                Verb::Replay { with, since, limit } => replay_all(common, &with, (since, limit), form).await,
                Verb::GrantConsent(Consent {
                    subject,
                    space,
                    purpose,
                    confirm,
                }) => {
                    let change = PolicyChange::GrantConsent {
                        subject,
                        space,
                        purpose,
                    };
                    make(common, change, confirm, form).await
                }
                Verb::RevokeConsent(Consent {
                    subject,
                    space,
                    purpose,
                    confirm,
                }) => {
                    let change = PolicyChange::RevokeConsent {
                        subject,
                        space,
                        purpose,
                    };
                    make(common, change, confirm, form).await
                }
                Verb::SetMode {
                    org,
                    automation,
                    tool,
                    mode: ModeWord(mode),
                    confirm,
                } => {
                    let change = match automation {
                        Some(automation) => PolicyChange::SetAutomationMode {
                            automation,
                            tool,
                            mode,
                        },
                        // One of the two was given.
                        None => PolicyChange::SetOrgMode {
                            org: org.unwrap_or_default(),
                            tool,
                            mode,
                        },
                    };
                    make(common, change, confirm, form).await
                }
            };
            match done {
                // The policy is what was asked about: that it is faulty is no fault of the host.
                Err(Trouble::Runtime(error @ Error::Policy(_))) => {
                    complain(&error);
                    Ok(Exit::Usage)
                }
                done => done,
            }
        })
    }
}

fn compile(directory: &Path) -> Result<Policy, Error> {
    // Root checks for whom the directory's surroundings belong to: the daemon's user, who may be another.
    let euid = nix::unistd::geteuid();
    let around = std::fs::metadata(directory.join("..")).map(|metadata| metadata.uid());
    let daemon = if euid.is_root() {
        around.unwrap_or(0)
    } else {
        euid.as_raw()
    };
    let source = PolicyDir::load(directory, daemon).map_err(Box::new)?;
    Ok(Policy::compile(&source, &Overlay::default()).map_err(Box::new)?)
}

fn tell_policy(policy: &PolicyView, form: Form) -> Exit {
    if !for_programs(form, policy) {
        line(&format!("good: {}\n{}", policy.summary, policy.digest));
    }
    for warning in &policy.warnings {
        complain(&format!("note: {warning}"));
    }
    for space in &policy.unusable {
        complain(&format!("cannot be used: {space}"));
    }
    if policy.unusable.is_empty() {
        Exit::Done
    } else {
        Exit::Unavailable
    }
}

/// What a reload makes of the spaces' roots.
fn roots_told(policy: &PolicyView) -> Vec<String> {
    let told = |change: &RootChange| {
        let after = change
            .after
            .as_deref()
            .unwrap_or("none; it is made when the space is used");
        format!("root of {}: {} -> {after}", change.space_id, change.before)
    };
    policy.roots.iter().map(told).collect()
}

async fn check(common: &Common, form: Form) -> Result<Exit, Trouble> {
    let policy = with_client(common, Depth::Policy, async |client| {
        let policy: PolicyView = client.call(Method::POST, "/v1/policy/check", "").await?;
        if !policy.in_force {
            complain(&"note: this is not in force yet; `effectd policy reload` puts it in force");
        }
        Ok(policy)
    });
    let policy = policy.await?;
    for root in roots_told(&policy) {
        complain(&format!("note: {root}; `effectd policy reload` takes it over"));
    }
    Ok(tell_policy(&policy, form))
}

async fn reload(common: &Common, confirm: Confirm, form: Form) -> Result<Exit, Trouble> {
    let policy = with_client(common, Depth::Policy, async |client| {
        if is_alone(client) {
            complain(&"nothing runs that could take it over; the next start will");
        }
        let files: PolicyView = client.call(Method::POST, "/v1/policy/check", "").await?;
        let mut says = roots_told(&files);
        if !files.in_force {
            says.push(format!("policy: what the files say now -> {}", files.digest));
        }
        if says.is_empty() {
            // Alone, that was said already.
            if !is_alone(client) {
                complain(&"there is nothing to change");
            }
            return Ok(Some(files));
        }
        if !confirm.given(&says) {
            return Ok(None);
        }
        let policy: PolicyView = client.call(Method::POST, "/v1/policy/reload", "").await?;
        tell_receipt(policy.receipt_id.as_deref());
        Ok(Some(policy))
    });
    Ok(policy
        .await?
        .map_or(Exit::Usage, |policy| tell_policy(&policy, form)))
}

/// Says what a change would make of the policy, asks, and makes it. Nobody is kept from the state while a person thinks.
async fn make(common: &Common, change: PolicyChange, confirm: Confirm, form: Form) -> Result<Exit, Trouble> {
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
        let says = [
            format!("policy: {}", super::store::words(&what)),
            format!("policy: {now} -> {}", tried.digest),
        ];
        if !confirm.given(&says) {
            return Ok(Exit::Usage);
        }
        with_client(common, Depth::Policy, async |client| {
            Ok(client.post("/v1/policy/changes", &change).await?)
        })
        .await?
    };
    tell_receipt(policy.receipt_id.as_deref());
    Ok(tell_policy(&policy, form))
}

async fn explain(common: &Common, what: &str, form: Form) -> Result<Exit, Trouble> {
    let explained = if Path::new(what).is_file() {
        explain_request(common, Path::new(what)).await?
    } else {
        explain_receipt(common, what).await?
    };
    if explained.policy_changed {
        complain(&"note: the policy has changed since; this is how it judges now");
    }
    if !for_programs(form, &explained) {
        line(explained.text.trim_end());
    }
    Ok(Exit::Done)
}

async fn explain_request(common: &Common, path: &Path) -> Result<Explanation, Trouble> {
    let request = read_request(path)?;
    with_client(common, Depth::Policy, async |client| {
        Ok(client.post("/v1/policy/explain", &request).await?)
    })
    .await
}

async fn explain_receipt(common: &Common, id: &str) -> Result<Explanation, Trouble> {
    let none = || {
        Error::Request(format!(
            "{id} is neither a file nor the id of a receipt or of an action that has ended here"
        ))
    };
    let name = ReceiptId::new(id).map_err(|_| none())?;
    with_client(common, Depth::Policy, async |client| {
        let receipt = named::find(client, &name).await?.ok_or_else(none)?;
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
    let size = std::fs::metadata(path)
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if size > REQUEST_BYTES_MAX as u64 {
        return Err(unreadable(format!(
            "at most {REQUEST_BYTES_MAX} bytes are allowed"
        )));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    ActionRequest::parse(&bytes).map_err(|failure| unreadable(failure.message))
}

/// Decisions judged between two questions for more.
const PAGE: usize = 500;

async fn replay_all(
    common: &Common,
    with: &Path,
    (since, limit): (Option<Since>, Option<u64>),
    form: Form,
) -> Result<Exit, Trouble> {
    let policy = compile(with)?;
    let which = Which {
        since,
        ..Which::default()
    };
    let summary = with_client(common, Depth::Store, async |client| {
        history(client, &policy, &which, (limit, form)).await
    })
    .await?;
    let ReplaySummary {
        total,
        same,
        flips,
        unknowable,
    } = summary;
    let value = json!({ "total": total, "same": same, "flips": flips, "unknowable": unknowable });
    if !for_programs(form, &json!({ "summary": value })) {
        line(&summary.to_string());
    }
    Ok(Exit::Done)
}

/// Judges the past page by page, so that a long history needs no more memory than a short one.
async fn history(
    client: &mut Client,
    policy: &Policy,
    which: &Which,
    (limit, form): (Option<u64>, Form),
) -> Result<ReplaySummary, Trouble> {
    let (mut all, mut after) = (ReplaySummary::default(), None);
    loop {
        let turn = Turn {
            order: Order::OldestFirst,
            after,
            limit: PAGE,
            wait_ms: None,
        };
        let page = page(client, which, turn).await?;
        let left = limit.map_or(u64::MAX, |limit| limit - all.total);
        let past = page
            .receipts
            .iter()
            .filter_map(Recorded::of)
            .take(usize::try_from(left).unwrap_or(usize::MAX));
        let judged = replay(past, policy, |record, replayed| {
            let Some(text) = render(record, replayed) else {
                return;
            };
            // One value after another, as they come; the last is the summary.
            let value = json!({ "decision": record.id, "was": record.verdict, "text": text });
            if !for_programs(form, &value) {
                line(&text);
            }
        });
        all.total += judged.total;
        all.same += judged.same;
        all.flips += judged.flips;
        all.unknowable += judged.unknowable;
        after = page.next;
        if after.is_none() || limit.is_some_and(|limit| all.total >= limit) {
            return Ok(all);
        }
    }
}
