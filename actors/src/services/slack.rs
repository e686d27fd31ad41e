//! A channel of Slack in which people decide: one message for each held action, kept up to date, over a connection of the organisation.
//!
//! It is a webhook with another body: [`super::webhooks`] delivers the events of `APPROVALS`. A message is written down before it is
//! posted. If its answer is lost, the channel's history says whether it is there, since each message has the approval's id in its
//! metadata.

use effectd_bus::{Expect, FamilyName, Store, StoreError, StoredEvent};
use effectd_contracts::text::is_unprintable;
use effectd_contracts::{
    ApprovalChange, ApprovalData, ApprovalId, Event, Exchange, Method, OrgId, Principal, SlackChannel,
    SlackUser, Timestamp, Webhook, is_slack_id,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Services;
use super::webhooks::{Undelivered, ask, event_in};
use crate::limits::{CONNECTIONS_PAGE, SLACK_TEXT_CHARS_MAX};
use crate::stored::{delete, entries, json_bytes, put, read_json, swap_all};

/// Accounts of users of Slack, by `<org>/<team>/<user>`.
pub(crate) const USERS: &str = "slack-users";
/// Messages about approvals that wait, by `<webhook>/<approval>`.
const MESSAGES: &str = "slack-messages";
/// The type of the metadata that messages have.
pub(crate) const METADATA: &str = "effectd_approval";

const POST: &str = "chat.postMessage";
const UPDATE: &str = "chat.update";
const TELL: &str = "chat.postEphemeral";
const HISTORY: &str = "conversations.history";

/// What Slack says of a message that it no longer changes.
const GONE: [&str; 4] = ["message_not_found", "cant_update_message", "edit_window_closed", "is_archived"];
/// How far Slack's clock and this one may differ, in seconds.
const CLOCKS_S: i64 = 60;
/// How long after its beginning an exchange may still post a message, in seconds.
const EXCHANGE_S: i64 = 60;

/// Pages of a channel's history that are searched.
const PAGES_MAX: usize = 8;

/// The message about an approval that waits; `None` if it does not.
pub(crate) type Asked = fn(&Services, &ApprovalId, &SlackChannel) -> Result<Option<Value>, StoreError>;

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    /// When it was sent last.
    since: Timestamp,
    /// Its id in the channel, once Slack has said it.
    ts: Option<String>,
}

/// The paths of the methods that a channel needs, or why it cannot be asked.
pub(crate) fn check(channel: &SlackChannel, path: &str) -> Result<Vec<String>, String> {
    let SlackChannel { team, channel, console } = channel;
    if !is_slack_id(team) || !is_slack_id(channel) {
        return Err("a workspace and a channel are ids such as T024BE7LD and C024BE91L".to_owned());
    }
    let host = console.strip_prefix("https://").or_else(|| console.strip_prefix("http://"));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte);
    if !host.is_some_and(|host| !host.is_empty() && host.len() <= 256 && host.bytes().all(plain)) {
        return Err("the console's address is such as https://effectd.example.org".to_owned());
    }
    let base = path.strip_suffix(POST).ok_or_else(|| format!("the path of a channel ends with {POST}"))?;
    Ok([POST, UPDATE, TELL].map(|method| format!("{base}{method}")).into())
}

/// All users of Slack that are accounts.
pub fn users(store: &dyn Store) -> Result<Vec<SlackUser>, StoreError> {
    let mut found = Vec::new();
    for entry in entries(store, &FamilyName::new(USERS)?, CONNECTIONS_PAGE) {
        found.extend(read_json(&entry?));
    }
    Ok(found)
}

/// The account that a user of Slack is.
pub(crate) fn account(
    store: &dyn Store,
    (org, team, user): (&OrgId, &str, &str),
) -> Result<Option<Principal>, StoreError> {
    let entry = store.entry(&FamilyName::new(USERS)?, &format!("{org}/{team}/{user}"))?;
    Ok(entry.as_ref().and_then(read_json).map(|known: SlackUser| known.account))
}

/// A text as Slack shows it: nothing in it is markup, a mention or a link, and nothing is hidden. The cut is marked.
pub(crate) fn plain(text: &str, chars_max: usize) -> String {
    let (mut shown, mut room) = (String::new(), chars_max);
    for c in text.chars() {
        let piece = match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            c if c != '\n' && is_unprintable(c) => format!("‹U+{:04X}›", u32::from(c)),
            c => c.to_string(),
        };
        let chars = piece.chars().count();
        if chars > room {
            shown.push('…');
            break;
        }
        room -= chars;
        shown += &piece;
    }
    shown
}

/// Plain text in a block. `text` is escaped already.
pub(crate) fn text(text: &str) -> Value {
    json!({ "type": "plain_text", "text": text, "emoji": false })
}

/// What every message has: no names in it become mentions or links.
pub(crate) fn body(channel: &SlackChannel, short: &str, blocks: Value) -> Value {
    let short = plain(short, SLACK_TEXT_CHARS_MAX);
    json!({
        "channel": channel.channel, "text": short, "blocks": blocks, "parse": "none", "link_names": false,
    })
}

/// The button that leads to the question's page.
pub(crate) fn link(channel: &SlackChannel, id: &ApprovalId, words: &str) -> Value {
    let url = format!("{}/console/approvals/{id}", channel.console);
    json!({ "type": "button", "action_id": "open", "text": text(words), "url": url })
}

/// Whether an event is about an approval of this organisation.
pub(super) fn is_for(services: &Services, org: &OrgId, event: &[u8]) -> bool {
    let Ok(event) = serde_json::from_slice::<Event<ApprovalData>>(event) else { return false };
    event.data.approval_id.is_some()
        && event.data.grant_id.is_none()
        && services.org_of(&event.spaceid).as_ref() == Some(org)
}

/// Posts or updates the message of the approval that an event is about.
pub(super) async fn tell(
    services: &Services,
    (webhook, channel): (&Webhook, &SlackChannel),
    stored: &StoredEvent,
    asked: Asked,
) -> Result<(), Undelivered> {
    let (event, _) = event_in(stored)?;
    let event: Event<ApprovalData> = serde_json::from_value(Value::Object(event))
        .map_err(|_| Undelivered::new("the event cannot be read"))?;
    let Some(id) = &event.data.approval_id else { return Ok(()) };
    let line = Line { services, webhook, channel };
    let by = &event.data.by;
    let outcome = match event.data.what {
        ApprovalChange::Requested | ApprovalChange::Reopened => return line.ask(id, asked).await,
        ApprovalChange::Approved => format!("approved by {by}"),
        ApprovalChange::Denied => format!("denied by {by}"),
        ApprovalChange::Expired => "expired: nobody decided in time".to_owned(),
        ApprovalChange::Released => "no approval is needed any more".to_owned(),
        ApprovalChange::Withdrawn => "withdrawn".to_owned(),
        ApprovalChange::Joined
        | ApprovalChange::GrantRequested
        | ApprovalChange::GrantCreated
        | ApprovalChange::GrantUsed
        | ApprovalChange::GrantRevoked
        | ApprovalChange::GrantEnded => return Ok(()),
    };
    line.end(id, &format!("{} in {}: {outcome}", event.data.tool, event.spaceid)).await
}

/// The way to one channel.
pub(crate) struct Line<'a> {
    pub(crate) services: &'a Services,
    pub(crate) webhook: &'a Webhook,
    pub(crate) channel: &'a SlackChannel,
}

impl Line<'_> {
    fn known(&self, id: &ApprovalId) -> Result<Option<Message>, StoreError> {
        let entry = self.services.store.entry(&FamilyName::new(MESSAGES)?, &self.key(id))?;
        Ok(entry.as_ref().and_then(read_json))
    }

    /// The id of the message that asks.
    pub(crate) fn message(&self, id: &ApprovalId) -> Result<Option<String>, StoreError> {
        Ok(self.known(id)?.and_then(|known| known.ts))
    }

    fn key(&self, id: &ApprovalId) -> String {
        format!("{}/{id}", self.webhook.webhook_id)
    }

    async fn keep(&self, id: &ApprovalId, since: Timestamp, ts: Option<String>) -> Result<(), StoreError> {
        let message = put(FamilyName::new(MESSAGES)?, self.key(id), Expect::Any, &Message { since, ts });
        swap_all(&*self.services.store, vec![message]).await.map(drop)
    }

    /// Posts the message of an approval, unless it is there.
    async fn ask(&self, id: &ApprovalId, asked: Asked) -> Result<(), Undelivered> {
        let known = self.known(id)?;
        if let Some(Message { ts: Some(_), .. }) = known {
            return Ok(());
        }
        let Some(message) = asked(self.services, id, self.channel)? else { return Ok(()) };
        if let Some(known) = known
            && let Some(ts) = self.find(id, known.since).await?
        {
            return Ok(self.keep(id, known.since, Some(ts)).await?);
        }
        let now = self.services.clock.now();
        self.keep(id, now, None).await?;
        let posted = self.call(POST, message).await?.map_err(refused)?;
        let ts = posted["ts"].as_str().ok_or_else(|| Undelivered::new("Slack named no message"))?;
        Ok(self.keep(id, now, Some(ts.to_owned())).await?)
    }

    /// Says how an approval ended, in place of its message.
    async fn end(&self, id: &ApprovalId, outcome: &str) -> Result<(), Undelivered> {
        let Some(known) = self.known(id)? else { return Ok(()) };
        let ts = match known.ts {
            Some(ts) => Some(ts),
            None => self.find(id, known.since).await?,
        };
        if let Some(ts) = ts {
            self.replace(id, &ts, outcome).await?;
        }
        let gone = delete(FamilyName::new(MESSAGES)?, self.key(id), Expect::Any);
        Ok(swap_all(&*self.services.store, vec![gone]).await.map(drop)?)
    }

    /// Replaces a message, so that it asks nothing any more.
    pub(crate) async fn replace(&self, id: &ApprovalId, ts: &str, outcome: &str) -> Result<(), Undelivered> {
        let blocks = json!([
            { "type": "section", "text": text(&plain(outcome, SLACK_TEXT_CHARS_MAX)) },
            { "type": "actions", "elements": [link(self.channel, id, "Open")] },
        ]);
        let mut message = body(self.channel, outcome, blocks);
        message["ts"] = ts.into();
        match self.call(UPDATE, message).await? {
            Err(error) if !GONE.contains(&error.as_str()) => Err(refused(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Tells one person something that nobody else sees.
    pub(crate) async fn whisper(&self, user: &str, note: &str) -> Result<(), Undelivered> {
        let blocks = json!([{ "type": "section", "text": text(&plain(note, SLACK_TEXT_CHARS_MAX)) }]);
        let mut message = body(self.channel, note, blocks);
        message["user"] = user.into();
        self.call(TELL, message).await?.map(drop).map_err(refused)
    }

    /// The message of an approval that was sent about this time, if it is in the channel. `None` also if the connection may not look.
    async fn find(&self, id: &ApprovalId, since: Timestamp) -> Result<Option<String>, Undelivered> {
        let path = self.path(HISTORY);
        let connection = self.services.connection(&self.webhook.org, &self.webhook.source);
        let access = connection.and_then(|connection| connection.access.clone());
        if !access.is_some_and(|access| access.routes.iter().any(|route| route.allows(Method::Get, &path))) {
            return Ok(None);
        }
        let about = since.as_second();
        let mut query: Vec<_> = [
            ("channel", self.channel.channel.clone()),
            ("oldest", (about - CLOCKS_S).to_string()),
            ("latest", (about + EXCHANGE_S + CLOCKS_S).to_string()),
            ("limit", "200".to_owned()),
            ("include_all_metadata", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let is_own = |message: &&Value| {
            let metadata = &message["metadata"];
            metadata["event_type"] == METADATA && metadata["event_payload"]["approval_id"] == id.as_str()
        };
        let own = query.len();
        for _ in 0..PAGES_MAX {
            let asked = Exchange::get(self.webhook.source.as_str(), path.as_str());
            let found = match self.exchange(Exchange { query: query.clone(), ..asked }).await? {
                Ok(found) => found,
                Err(error) if error == "missing_scope" => return Ok(None),
                Err(error) => return Err(refused(error)),
            };
            let known = found["messages"].as_array().and_then(|messages| messages.iter().find(is_own));
            if let Some(ts) = known.and_then(|message| message["ts"].as_str()) {
                return Ok(Some(ts.to_owned()));
            }
            query.truncate(own);
            match found["response_metadata"]["next_cursor"].as_str() {
                Some(next) if !next.is_empty() => query.push(("cursor".to_owned(), next.to_owned())),
                Some(_) | None => break,
            }
        }
        Ok(None)
    }

    fn path(&self, method: &str) -> String {
        format!("{}{method}", self.webhook.path.trim_end_matches(POST))
    }

    async fn call(&self, method: &str, body: Value) -> Result<Result<Value, String>, Undelivered> {
        let exchange = Exchange::new(self.webhook.source.as_str(), Method::Post, self.path(method));
        self.exchange(Exchange { body: json_bytes(&body), ..exchange }).await
    }

    /// Slack's answer, or the error in it: its status is 200 either way.
    async fn exchange(&self, exchange: Exchange) -> Result<Result<Value, String>, Undelivered> {
        let answer = ask(self.services, &self.webhook.org, exchange, Vec::new()).await?;
        let answer: Value = serde_json::from_slice(&answer.body)
            .map_err(|_| Undelivered::new("Slack's answer is no JSON"))?;
        if answer["ok"] == true {
            return Ok(Ok(answer));
        }
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let error = answer["error"].as_str().unwrap_or("no error").chars();
        Ok(Err(error.filter(plain).take(64).collect()))
    }
}

fn refused(error: String) -> Undelivered {
    Undelivered::new(format!("Slack answered {error}"))
}

/// Removes what is known about the messages of all channels but some.
pub(super) async fn forget(store: &dyn Store, is_kept: impl Fn(&str) -> bool) -> Result<(), StoreError> {
    let family = FamilyName::new(MESSAGES)?;
    let all = entries(store, &family, CONNECTIONS_PAGE).collect::<Result<Vec<_>, StoreError>>()?;
    let of = |key: &str| key.split('/').next().is_some_and(&is_kept);
    let gone = all.iter().filter(|entry| !of(&entry.key));
    let gone: Vec<_> = gone.map(|entry| delete(family.clone(), entry.key.as_str(), Expect::Any)).collect();
    for some in gone.chunks(CONNECTIONS_PAGE) {
        swap_all(store, some.to_vec()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_others_is_markup_in_slack() {
        for (given, shown) in [
            ("plain", "plain"),
            (
                "<!channel> <@U1> <https://evil.example|here>",
                "&lt;!channel&gt; &lt;@U1&gt; &lt;https://evil.example|here&gt;",
            ),
            ("a &lt;b", "a &amp;lt;b"),
            ("a\u{202e}b\u{200b}\r", "a‹U+202E›b‹U+200B›‹U+000D›"),
        ] {
            assert_eq!(plain(given, 100), shown);
        }
        assert_eq!(plain("<<<<", 9), "&lt;&lt;…");
    }

    #[test]
    fn a_channel_is_checked_before_it_is_asked() {
        let channel = |team: &str, channel: &str, console: &str| SlackChannel {
            team: team.to_owned(),
            channel: channel.to_owned(),
            console: console.to_owned(),
        };
        let good = channel("T1", "C1", "https://effectd.example.org");
        let paths = ["/api/chat.postMessage", "/api/chat.update", "/api/chat.postEphemeral"];
        assert_eq!(check(&good, "/api/chat.postMessage").as_deref(), Ok(paths.map(str::to_owned).as_slice()));
        assert!(check(&good, "/api/files.upload").is_err());
        for wrong in [
            channel("t1", "C1", "https://x"),
            channel("T1", "#general", "https://x"),
            channel("T1", "C1", "javascript:alert(1)"),
            channel("T1", "C1", "https://x/a|b>"),
            channel("T1", "C1", "https://"),
        ] {
            assert!(check(&wrong, "/api/chat.postMessage").is_err(), "{wrong:?}");
        }
    }
}
