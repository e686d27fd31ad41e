//! Short ids: the beginning of a UUID stands for it, if only one id begins so.
//!
//! Ids that planners choose (`job-1`) have to be written in full: `job-1` must never mean `job-10`.

use effectd_contracts::{ActionId, ApprovalId, Receipt};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::ReceiptList;

use super::{ActionReply, CliError, approvals};

/// The length of a UUID.
pub(super) const FULL: usize = 36;
/// The length of a digest.
const DIGEST: usize = 64;
/// The part of an id that tables show; of a UUID, it is the time in milliseconds.
pub(super) const SHOWN: usize = 13;
/// The shortest beginning that is accepted.
const MIN: usize = 4;
/// The shortest beginning that names what is decided about: of a UUID, the time and 12 random bits.
const DECISION_MIN: usize = 18;
/// The number of ids that an error lists.
const LISTED_MAX: usize = 8;

/// Whether the text is a UUID or a digest.
pub(super) fn is_long(text: &str) -> bool {
    [FULL, DIGEST].contains(&text.len()) && is_part(text)
}

fn is_part(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Whether a word may be the beginning of a UUID or of a digest.
pub(super) fn is_short(word: &str) -> bool {
    word.len() >= MIN && !is_long(word) && is_part(word)
}

/// What a command does with the thing that a word names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Show,
    Decide,
}

impl Purpose {
    /// Fails if a decision is about one of these ids, and the word is too short a beginning of it.
    pub(super) fn check<'a>(
        self,
        word: &str,
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), CliError> {
        if self == Purpose::Show || word.len() >= DECISION_MIN {
            return Ok(());
        }
        let mut found = ids.into_iter().filter(|id| is_named(word, id)).peekable();
        if found.peek().is_none() || found.any(|id| id == word) {
            return Ok(());
        }
        Err(CliError::request(format!(
            "{word} is too short: write at least {DECISION_MIN} characters to decide"
        )))
    }
}

/// Whether a word is this id, or the beginning of this UUID or digest.
pub(super) fn is_named(word: &str, id: &str) -> bool {
    id == word || (is_short(word) && is_long(id) && id.starts_with(word))
}

/// The id that a word names: in full, or by its beginning. `None` if there is none.
pub(super) fn pick<'a>(
    word: &str,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<Option<&'a str>, CliError> {
    only(word, ids.into_iter().filter(|id| is_named(word, id)))
}

/// The path of the thing below `root` that a word names, in full or by its beginning; `all` is asked for what is there if it must.
pub(super) async fn path<T>(
    root: &str,
    word: &str,
    all: impl Future<Output = Result<Vec<T>, CliError>>,
    id: impl Fn(&T) -> &str,
) -> Result<String, CliError> {
    let known = if is_short(word) { all.await? } else { Vec::new() };
    let id = pick(word, known.iter().map(id))?.unwrap_or(word);
    Ok(format!("{root}/{}", percent_encoded(id)))
}

/// The one of these ids that is the word; otherwise the only one.
pub(super) fn only<'a>(
    word: &str,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<Option<&'a str>, CliError> {
    let mut found: Vec<&str> = Vec::new();
    for id in ids {
        if id == word {
            return Ok(Some(id));
        }
        if !found.contains(&id) {
            found.push(id);
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(id)),
        several => Err(ambiguous(word, several)),
    }
}

fn ambiguous(word: &str, ids: &[&str]) -> CliError {
    let listed = ids.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = if ids.len() > LISTED_MAX { ", …" } else { "" };
    CliError::request(format!("{word} is not unique: {listed}{more}; write more of the id"))
}

/// The approval that a word names, by its beginning if that is pending. Otherwise the word, which may name a past one.
pub(super) async fn approval(
    client: &mut Client,
    word: &ApprovalId,
    purpose: Purpose,
) -> Result<ApprovalId, CliError> {
    if !is_short(word.as_str()) {
        return Ok(word.clone());
    }
    let pending = approvals::all(client).await?;
    let found = pick(word.as_str(), pending.iter().map(|view| view.approval_id.as_str()))?;
    purpose.check(word.as_str(), found)?;
    Ok(found.and_then(|id| ApprovalId::new(id).ok()).unwrap_or_else(|| word.clone()))
}

/// The action that a word names, by its beginning if the action has ended or awaits approval. Otherwise the word.
pub(super) async fn action(
    client: &mut Client,
    word: &ActionId,
    purpose: Purpose,
) -> Result<ActionId, CliError> {
    if !is_short(word.as_str()) || !is_unknown(&client.status(word).await?) {
        return Ok(word.clone());
    }
    let (ended, pending) = (receipts(client, "action", word.as_str()).await?, approvals::all(client).await?);
    let ended = ended.iter().map(|receipt| receipt.action_id.as_str());
    let ids = ended.chain(pending.iter().flat_map(|view| view.action_ids.iter().map(String::as_str)));
    let found = pick(word.as_str(), ids)?;
    purpose.check(word.as_str(), found)?;
    Ok(found.and_then(|id| ActionId::new(id).ok()).unwrap_or_else(|| word.clone()))
}

fn is_unknown(reply: &ActionReply) -> bool {
    matches!(reply, ActionReply::Problem(problem) if problem.code == "action_unknown")
}

/// The receipt whose id, or whose action's id, begins with a word.
pub(super) async fn receipt(client: &mut Client, word: &str) -> Result<Option<Receipt>, CliError> {
    if !is_short(word) {
        return Ok(None);
    }
    let mut found = receipts(client, "receipt", word).await?;
    found.extend(receipts(client, "action", word).await?);
    let mut actions: Vec<&str> = found.iter().map(|receipt| receipt.action_id.as_str()).collect();
    actions.sort_unstable();
    actions.dedup();
    if actions.len() > 1 {
        return Err(ambiguous(word, &actions));
    }
    Ok(found.into_iter().next())
}

/// The newest receipt of each action, where this field is a UUID that begins with a word. An action may have several, if it was
/// requeued. Stops when it has more than an error lists.
async fn receipts(client: &mut Client, field: &str, word: &str) -> Result<Vec<Receipt>, CliError> {
    let (mut found, mut after) = (Vec::<Receipt>::new(), String::new());
    let query = percent_encoded(&format!("{field}:{word}*"));
    while found.len() <= LISTED_MAX {
        let path = format!("/v1/receipts?order=newest&limit=500&q={query}{after}");
        let page: ReceiptList = client.get(&path).await?;
        for receipt in page.receipts {
            let is_known = found.iter().any(|known| known.action_id == receipt.action_id);
            if !is_known && (field == "receipt" || is_long(receipt.action_id.as_str())) {
                found.push(receipt);
            }
        }
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_beginning_names_one_id_or_none() {
        let ids = [
            "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36",
            "0199f6a2-5a4e-7c11-8d53-3f2b5f0c9a36",
            "0199",
            "job-10",
            "12345",
            "deadline-1",
        ];
        assert_eq!(pick("0199f6a2-5a4e-7c10", ids).unwrap(), Some(ids[0]));
        assert_eq!(pick("0199", ids).unwrap(), Some("0199"), "a full id counts first");
        let error = pick("0199f6a2", ids).unwrap_err().to_string();
        assert!(error.contains("not unique") && error.contains(ids[0]) && error.contains(ids[1]), "{error}");
        for none in ["job-1", "019", "beef", "1234", "dead", "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a37"] {
            assert_eq!(pick(none, ids).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn a_decision_needs_a_whole_id_or_a_long_beginning() {
        let id = "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36";
        for (word, ids, decides) in [
            (id, vec![id], true),
            (&id[..18], vec![id], true),
            (&id[..17], vec![id], false),
            ("0199", vec![id, "0199"], true),
            ("0199", vec![id, "job-1"], false),
            ("12345", vec![id], true),
        ] {
            assert_eq!(Purpose::Decide.check(word, ids.clone()).is_ok(), decides, "{word}");
            assert!(Purpose::Show.check(word, ids).is_ok(), "{word}");
        }
    }
}
