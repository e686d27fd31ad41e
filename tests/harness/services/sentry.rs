//! Sentry: issues of one project and their events, by REST beneath `/api/0`.
//!
//! As at Sentry itself, an issue has two addresses: at the top by its number, as effectd asks, and beneath its organisation by its number or
//! its short id, as the vendor's client asks. Both lead to one state, and `.ci/services/sentry.mjs` asks by both.

use serde_json::{Value, json};

use super::{Fake, Reply, Request, Vendor};

pub const ORGANIZATION: &str = "acme";
const PROJECT: &str = "web";
/// The issue that is there.
pub const GROUP: &str = "4509876543";
/// Its id for people, which only its organisation knows.
pub const SHORT_ID: &str = "WEB-1";
/// Its event.
pub const EVENT: &str = "0123456789abcdef0123456789abcdef";

pub struct Sentry {
    token: String,
    issue: Value,
}

impl Sentry {
    pub fn start(token: &str) -> Fake<Self> {
        let issue = json!({
            "id": GROUP, "shortId": SHORT_ID, "title": "TypeError: x is undefined", "culprit": "app.js in render",
            "permalink": format!("https://acme.sentry.io/issues/{GROUP}/"), "level": "error", "status": "unresolved",
            "statusDetails": {}, "isPublic": false, "platform": "javascript", "type": "error", "count": "7",
            "userCount": 2, "firstSeen": "2026-01-01T00:00:00Z", "lastSeen": "2026-01-02T00:00:00Z",
            "project": { "id": "1", "name": "Web", "slug": PROJECT, "platform": "javascript" },
            "assignedTo": null, "metadata": { "type": "TypeError", "value": "x is undefined" },
            "annotations": [], "isBookmarked": false, "isSubscribed": false, "hasSeen": true, "logger": null,
            "numComments": 0, "shareId": null, "subscriptionDetails": null, "stats": {},
        });
        Fake::new(Self { token: token.to_owned(), issue })
    }

    pub fn issue(&self) -> &Value {
        &self.issue
    }

    /// Changes the issue as a person would, by `status` and `assignedTo`.
    fn update(&mut self, body: &Value) -> (Reply, bool) {
        let Some(fields) = body.as_object() else {
            return (detail(400, "JSON parse error"), false);
        };
        for (name, value) in fields {
            let is_known = match (name.as_str(), value.as_str()) {
                ("status", Some(status)) => {
                    ["resolved", "ignored", "unresolved", "resolvedInNextRelease"].contains(&status)
                }
                ("assignedTo", Some(_)) => true,
                _ => false,
            };
            if !is_known {
                let why = format!("{value} is not a valid choice.");
                return (Reply::json(400, json!({ name.as_str(): [why] }).to_string()), false);
            }
        }
        for (name, value) in fields {
            let who = value.as_str().filter(|who| !who.is_empty());
            self.issue[name.as_str()] = match (name.as_str(), who) {
                ("assignedTo", None) => Value::Null,
                ("assignedTo", Some(who)) => match who.split_once(':') {
                    Some((kind, id)) => json!({ "type": kind, "id": id, "name": who }),
                    None => json!({ "type": "user", "id": "9", "name": who, "email": who }),
                },
                _ => value.clone(),
            };
        }
        (Reply::json(200, self.issue.to_string()), true)
    }

    fn event(&self) -> Value {
        json!({
            "id": EVENT, "eventID": EVENT, "groupID": self.issue["id"], "projectID": "1", "title": self.issue["title"],
            "message": "x is undefined", "platform": "javascript", "type": "error", "dateCreated": "2026-01-02T00:00:00Z",
            "tags": [{ "key": "browser", "value": "Firefox 140" }], "user": { "id": "3", "email": "canary@example.org" },
            "entries": [{ "type": "exception", "data": { "values": [{ "type": "TypeError", "value": "x is undefined" }] } }],
            "contexts": {}, "size": 1000, "errors": [], "location": "app.js", "culprit": "app.js in render", "metadata": {},
        })
    }
}

fn detail(status: u16, why: &str) -> Reply {
    Reply::json(status, json!({ "detail": why }).to_string())
}

impl Vendor for Sentry {
    fn answer(&mut self, request: &Request) -> (Reply, bool) {
        if request.header("authorization") != format!("Bearer {}", self.token) {
            return (detail(401, "Invalid token"), false);
        }
        let missing = || (detail(404, "The requested resource does not exist"), false);
        let segments: Vec<_> = request.segments.iter().map(String::as_str).collect();
        // Sentry redirects a path without the last slash.
        if !request.path.ends_with('/') {
            return missing();
        }
        let ["api", "0", rest @ ..] = &segments[..] else { return missing() };
        let (rest, is_of_org) = match rest {
            ["organizations", ORGANIZATION, rest @ ..] => (rest, true),
            rest => (rest, false),
        };
        let ok = |value: Value| (Reply::json(200, value.to_string()), false);
        let id = |id: &str| id == GROUP || is_of_org && id == SHORT_ID;
        match (request.method.as_str(), rest) {
            ("GET", ["projects", ORGANIZATION, PROJECT, "issues"]) if !is_of_org => {
                let wanted = request.query.get("query").map_or("is:unresolved", String::as_str);
                let status = wanted.split(' ').find_map(|word| word.strip_prefix("is:"));
                let is_wanted = status.is_none_or(|status| self.issue["status"] == status);
                ok(json!(is_wanted.then_some(&self.issue).into_iter().collect::<Vec<_>>()))
            }
            ("GET", ["issues", issue]) if id(issue) => ok(self.issue.clone()),
            ("GET", ["issues", issue, "events"]) if id(issue) => ok(json!([self.event()])),
            ("GET", ["issues", issue, "events", EVENT | "latest" | "oldest" | "recommended"])
                if id(issue) =>
            {
                ok(self.event())
            }
            ("PUT", ["issues", issue]) if id(issue) && request.is_json() => {
                self.update(&serde_json::from_str(&request.body).unwrap_or_default())
            }
            _ => missing(),
        }
    }

    /// Sentry refuses by its status alone.
    fn refusal(&self, _: &str) -> Reply {
        detail(403, "You do not have permission to perform this action.")
    }

    fn state(&self) -> Value {
        json!({ "issue": self.issue })
    }
}
