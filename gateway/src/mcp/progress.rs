//! The answer to a call. A client that wants to hear of progress gets a stream if the call takes longer: signs of life, then the result.

use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Asked, call};
use crate::authenticate;
use crate::extract::json as json_response;
use crate::limits::MCP_PROGRESS_EVERY;
use crate::streams::body::{Guard, streamed};

/// The member of `_meta` by which a client asks for signs of life.
pub(super) const TOKEN: &str = "progressToken";

type Work = Pin<Box<dyn Future<Output = (StatusCode, Value)> + Send>>;

pub(super) async fn answered(id: Value, asked: Asked) -> Response {
    let token = asked.meta.get(TOKEN).filter(|token| token.is_string() || token.is_number());
    let token = token.filter(|_| hears_events(&asked.headers)).cloned();
    let (app, peer) = (asked.app.clone(), asked.peer.clone());
    let mut work: Work = Box::pin(async move {
        let era = asked.era.clone();
        era.message(&id, call::tool(asked).await)
    });
    let Some(token) = token else {
        let (status, message) = work.await;
        return json_response(status, &message);
    };
    match timeout(MCP_PROGRESS_EVERY, &mut work).await {
        Ok((status, message)) => json_response(status, &message),
        Err(_) => {
            let guard: Guard = Box::new(move || authenticate::still_valid(&app, &peer));
            events(streamed(Progress { work: Some(work), token, told: 0, guard }, Progress::next))
        }
    }
}

fn hears_events(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|kinds| kinds.contains("text/event-stream"))
}

/// Messages as server-sent events.
pub(super) fn events(body: Body) -> Response {
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (head, body).into_response()
}

pub(super) fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

struct Progress {
    /// `None` once the result is sent.
    work: Option<Work>,
    token: Value,
    /// How often the client has heard of progress.
    told: u32,
    guard: Guard,
}

impl Progress {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let bytes = self.bytes().await?;
        (self.guard)().then_some((bytes, self))
    }

    async fn bytes(&mut self) -> Option<Bytes> {
        let work = self.work.as_mut()?;
        // The time before the first sign has passed already.
        if self.told > 0
            && let Ok((_, message)) = timeout(MCP_PROGRESS_EVERY, work).await
        {
            self.work = None;
            return Some(event(&message));
        }
        self.told += 1;
        let seconds = MCP_PROGRESS_EVERY.as_secs() * u64::from(self.told);
        let params = json!({
            "progressToken": self.token, "progress": seconds, "message": format!("not ended after {seconds} s"),
        });
        let sign = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
        Some(event(&sign))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_come_until_the_result_does() {
        let work: Work = Box::pin(async {
            sleep(MCP_PROGRESS_EVERY * 5 / 2).await;
            (StatusCode::OK, json!({ "id": 1, "result": "r" }))
        });
        let progress = Progress { work: Some(work), token: json!("t"), told: 0, guard: Box::new(|| true) };
        let response = events(streamed(progress, Progress::next));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let data: Vec<Value> = data.map(|line| serde_json::from_str(line).unwrap()).collect();
        let progress: Vec<_> = data.iter().map(|message| &message["params"]["progress"]).collect();
        assert_eq!(progress, [&json!(2), &json!(4), &json!(6), &Value::Null]);
        assert_eq!(data[3], json!({ "id": 1, "result": "r" }));
    }
}
