//! A service on this machine that answers by a script, and writes down what it gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as the service got it: its head, and its body.
pub type Asked = (String, String);
/// The answer to a request with this head and this body.
type Script = dyn Fn(&str, &str) -> Reply + Send + Sync;

/// What the service does with a request.
pub enum Reply {
    /// Status, further lines of the head, and the body.
    Answer(u16, String, String),
    /// An answer that breaks off in the middle of its body.
    Half(u16, String, String),
    /// No answer: it closes the connection.
    Nothing,
    /// No answer until the other side goes.
    Never,
}

impl Reply {
    pub fn json(status: u16, body: String) -> Self {
        Self::Answer(status, "content-type: application/json\r\n".to_owned(), body)
    }
}

pub struct Service {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Service {
    /// Status and JSON for a request by its method and path, its head and its body; `None` closes the connection without an answer.
    pub fn new(script: impl Fn(&str, &str, &str) -> Option<(u16, String)> + Send + Sync + 'static) -> Self {
        Self::with(move |head, body| {
            let line: Vec<_> = head.split(' ').take(2).collect();
            let answer = script(&line.join(" "), head, body);
            answer.map_or(Reply::Nothing, |(status, answer)| Reply::json(status, answer))
        })
    }

    pub fn with(script: impl Fn(&str, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (all, script): (_, Arc<Script>) = (asked.clone(), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, script) = (all.clone(), script.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &all, &*script));
            }
        });
        Self { port, asked }
    }

    /// What was asked by this method and path.
    pub fn asked(&self, line: &str) -> Vec<Asked> {
        let all = self.asked.lock().unwrap();
        all.iter().filter(|(head, _)| head.starts_with(&format!("{line} "))).cloned().collect()
    }

    /// All that was asked, in order.
    pub fn all(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, all: &Mutex<Vec<Asked>>, script: &Script) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        all.lock().unwrap().push((head.clone(), body.clone()));
        let (status, more, answer, is_whole) = match script(&head, &body) {
            Reply::Answer(status, more, answer) => (status, more, answer, true),
            Reply::Half(status, more, answer) => (status, more, answer, false),
            Reply::Nothing => return,
            Reply::Never => {
                let _gone = reader.read_line(&mut String::new());
                return;
            }
        };
        let length = answer.len();
        let head = format!("HTTP/1.1 {status} x\r\n{more}content-length: {length}\r\n\r\n");
        let sent = if is_whole { answer.as_str() } else { &answer[..answer.floor_char_boundary(length / 2)] };
        // The other side may be gone.
        if stream.write_all(format!("{head}{sent}").as_bytes()).is_err() || !is_whole {
            return;
        }
    }
}
