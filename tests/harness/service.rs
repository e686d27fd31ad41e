//! A service on this machine that answers by a script, and writes down what it gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as the service got it: its head, and its body.
pub type Asked = (String, String);
/// Status and JSON for a request by its method and path, its head and its body; `None` closes the connection without an answer.
type Script = dyn Fn(&str, &str, &str) -> Option<(u16, String)> + Send + Sync;

pub struct Service {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Service {
    pub fn new(script: impl Fn(&str, &str, &str) -> Option<(u16, String)> + Send + Sync + 'static) -> Self {
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
        let line: Vec<_> = head.split(' ').take(2).collect();
        let Some((status, answer)) = script(&line.join(" "), &head, &body) else { return };
        let length = answer.len();
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        // The other side may be gone.
        if stream.write_all(format!("{head}{answer}").as_bytes()).is_err() {
            return;
        }
    }
}
