//! Talks to a running effectd through its socket.
//!
//! Everything here may be repeated: an action's id makes sure that what was taken is not done twice. So a connection that
//! breaks is no reason to wonder, only to ask again.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::{ActionId, ActionRequest};
use effectd_gateway::problem::Problem;
use effectd_gateway::views::ActionView;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// The largest answer that is read: a receipt with the largest output of a tool fits several times.
const ANSWER_BYTES_MAX: usize = 16 * 1_048_576;

/// Says whether somebody sits at a terminal and waits.
const INTERACTIVE: &str = "effectd-interactive";

/// Why the daemon gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers on {}; `effectd serve` starts one, on the state that --state names", .0.display())]
    NoDaemon(PathBuf),
    /// Somebody listens, but not to us.
    #[error("{} may not be used by you; ask whoever runs the daemon to put you into its group", .0.display())]
    NotPermitted(PathBuf),
    /// The connection broke. Whether the request was taken is not known; asking again is harmless.
    #[error("the connection to the daemon broke: {0}; asking again is harmless")]
    Broken(String),
    /// What came back is not an answer of effectd.
    #[error("what answers is not effectd, or another version of it: {0}")]
    Strange(String),
}

impl ClientError {
    /// Whether asking again may help.
    pub fn may_retry(&self) -> bool {
        match self {
            ClientError::NoDaemon(_) | ClientError::Broken(_) => true,
            ClientError::NotPermitted(_) | ClientError::Strange(_) => false,
        }
    }
}

/// What the daemon said.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// How the action stands.
    View(ActionView),
    /// Why not.
    Problem(Problem),
}

/// One connection to a daemon, made when it is needed and again when it broke.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A client of whoever listens there.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            sender: None,
        }
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether somebody answers.
    pub async fn is_there(&mut self) -> Result<(), ClientError> {
        self.ask(Method::GET, "/healthz", Bytes::new()).await.map(drop)
    }

    /// Submits a decision; waits for its receipt for this long, if that is wanted.
    pub async fn submit(
        &mut self,
        request: &ActionRequest,
        wait: Option<Duration>,
    ) -> Result<Told, ClientError> {
        let body = serde_json::to_vec(request).map_err(|error| ClientError::Strange(error.to_string()))?;
        let path = match wait {
            None => "/v1/actions".to_owned(),
            Some(wait) => format!("/v1/actions?wait={}", wait.as_millis()),
        };
        told(self.ask(Method::POST, &path, body.into()).await?)
    }

    /// How an action stands.
    pub async fn status(&mut self, action: &ActionId) -> Result<Told, ClientError> {
        let path = format!("/v1/actions/{}", percent_encoded(action.as_str()));
        told(self.ask(Method::GET, &path, Bytes::new()).await?)
    }

    /// Waits until an action has ended, for this long at most.
    pub async fn wait(&mut self, action: &ActionId, wait: Duration) -> Result<Told, ClientError> {
        let id = percent_encoded(action.as_str());
        let path = format!("/v1/actions/{id}/wait?timeout_ms={}", wait.as_millis());
        told(self.ask(Method::GET, &path, Bytes::new()).await?)
    }

    /// Withdraws an action.
    pub async fn cancel(&mut self, action: &ActionId) -> Result<Told, ClientError> {
        let path = format!("/v1/actions/{}", percent_encoded(action.as_str()));
        told(self.ask(Method::DELETE, &path, Bytes::new()).await?)
    }

    /// Any request whose answer is JSON of this kind, or a problem.
    pub async fn call<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Result<Result<T, Box<Problem>>, ClientError> {
        let (status, body) = self.ask(method, path, body.into()).await?;
        if status < 400 {
            read(&body).map(Ok)
        } else {
            read(&body).map(|problem| Err(Box::new(problem)))
        }
    }

    /// Any request; answers status and body.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), ClientError> {
        let answer = self.ask_once(method, path, body).await;
        if answer.is_err() {
            self.sender = None;
        }
        answer
    }

    async fn ask_once(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), ClientError> {
        let response = self.send(method, path, body).await?;
        let status = response.status().as_u16();
        Ok((status, whole(response).await?))
    }

    /// Gets something that may be long, in pieces. If the daemon refuses, the problem comes instead.
    pub async fn fetch(
        &mut self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Result<io::Result<()>, Box<Problem>>, ClientError> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        if response.status().as_u16() != 200 {
            let body = whole(response).await?;
            return read(&body).map(|problem| Err(Box::new(problem)));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                self.sender = None;
                ClientError::Broken(error.to_string())
            })?;
            if let Ok(piece) = frame.into_data()
                && let Err(error) = take(&piece)
            {
                // The rest of it is still on its way, and nobody wants it.
                self.sender = None;
                return Ok(Ok(Err(error)));
            }
        }
        Ok(Ok(Ok(())))
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let broken = |error: hyper::Error| ClientError::Broken(error.to_string());
        let sender = self.connected().await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "effectd")
            .header(CONTENT_TYPE, "application/json")
            .header(
                INTERACTIVE,
                if std::io::stdin().is_terminal() {
                    "true"
                } else {
                    "false"
                },
            )
            .body(Full::new(body))
            .map_err(|error| ClientError::Strange(error.to_string()))?;
        sender.send_request(request).await.map_err(broken)
    }

    async fn connected(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, ClientError> {
        let alive = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        let sender = match self.sender.take().filter(|_| alive) {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        Ok(self.sender.insert(sender))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            let is = |kind| error.kind() == kind;
            if is(io::ErrorKind::NotFound)
                || is(io::ErrorKind::NotADirectory)
                || is(io::ErrorKind::ConnectionRefused)
            {
                ClientError::NoDaemon(self.socket.clone())
            } else if is(io::ErrorKind::PermissionDenied) {
                ClientError::NotPermitted(self.socket.clone())
            } else {
                ClientError::Broken(error.to_string())
            }
        })?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ClientError::Broken(error.to_string()))?;
        // Its errors come out of the requests that meet them.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// All of an answer that is not long.
async fn whole(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await;
    let body = body.map_err(|error| ClientError::Broken(error.to_string()))?;
    Ok(body.to_bytes())
}

fn told((status, body): (u16, Bytes)) -> Result<Told, ClientError> {
    if status < 400 {
        read(&body).map(Told::View)
    } else {
        read(&body).map(Told::Problem)
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Strange(error.to_string()))
}

/// A name that is one segment of a path, whatever is in it.
pub(crate) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    // `.` and `..` alone would be taken for folders.
    match encoded.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_one_segment() {
        assert_eq!(percent_encoded("a/b?c d"), "a%2Fb%3Fc%20d");
        assert_eq!(percent_encoded(".."), "%2E%2E");
        assert_eq!(percent_encoded("0199-x_y.z~"), "0199-x_y.z~");
    }
}
