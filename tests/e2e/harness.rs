//! The harness of these tests: a runtime in the test's own process, and every byte of the state.

use std::io::ErrorKind;
use std::path::PathBuf;

use effectd::contracts::ActionRequest;
use effectd::internal::{Config, Runtime};
use serde_json::Value;

pub use crate::shared::*;

/// Runs a test as the current user and, if that is root, as an ordinary user too.
pub fn as_root_and_as_ordinary_user(name: &str, test: impl Fn(Who)) {
    test(Who::Myself);
    if is_root(&format!("{name} as root")) {
        test(Who::Nobody);
    }
}

/// What a runtime adds to a place.
pub trait Running {
    /// Carries out a request with the program, which shows its receipt.
    fn run(&self, request: &Value) -> Ran;
    /// A runtime in this process, on this place's state.
    fn config(&self) -> Config;
    fn runtime(&self) -> impl Future<Output = Runtime>;
    /// Every byte of every file below the state directory.
    fn state_bytes(&self) -> Vec<(PathBuf, Vec<u8>)>;
}

impl Running for Place {
    fn run(&self, request: &Value) -> Ran {
        self.effectd(&["run", "-", "-o", "json"], Some(&request.to_string()))
    }

    fn config(&self) -> Config {
        let mut config = Config::embedded(self.state()).unwrap();
        config.zygote_exe = program().into();
        config
    }

    async fn runtime(&self) -> Runtime {
        Runtime::start(self.config()).await.unwrap()
    }

    fn state_bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        // A running store renames files: if one vanishes between listing and reading, all are listed again.
        for _ in 0..1_000 {
            match bytes_below(self.state()) {
                Ok(files) => return files,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => panic!("the state cannot be read: {error}"),
            }
        }
        panic!("files of the state come and go, and never stay");
    }
}

fn bytes_below(folder: PathBuf) -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let kind = std::fs::metadata(&path)?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let bytes = std::fs::read(&path)?;
                files.push((path, bytes));
            }
        }
    }
    Ok(files)
}

/// A request that the demo policy permits, with its own trace id.
pub fn write_note(action: &str, path: &str, text: &str) -> Value {
    let mut note = request(action, path, text);
    note["trace_id"] = format!("trace-{action}").into();
    note
}

/// The same, as the library takes it.
pub fn note(action: &str, path: &str, text: &str) -> ActionRequest {
    serde_json::from_value(write_note(action, path, text)).unwrap()
}

pub fn example() -> PathBuf {
    root().join("examples/write_note.json")
}
