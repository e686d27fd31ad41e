//! How often redaction takes ordinary text of source trees for personal data, and whether it finds what people write.

use std::fs;
use std::path::{Path, PathBuf};

use effectd_policy::redact::personal::{Redacted, redact_path, redact_text};

/// The most false hits in this many lines.
const LINES_PER_HIT: usize = 10_000;

/// Numbers without a pattern, the same ones on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn text(&mut self, letters: &str, length: usize) -> String {
        let letters: Vec<char> = letters.chars().collect();
        (0..length).map(|_| letters[self.below(letters.len() as u64) as usize]).collect()
    }

    fn hex(&mut self, length: usize) -> String {
        self.text("0123456789abcdef", length)
    }

    fn base64(&mut self, length: usize) -> String {
        self.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", length)
    }

    fn version(&mut self) -> String {
        format!("{}.{}.{}", self.below(20), self.below(100), self.below(20_000))
    }

    fn date(&mut self, between: &str) -> String {
        format!(
            "{}{between}{:02}{between}{:02}",
            1990 + self.below(40),
            1 + self.below(12),
            1 + self.below(28)
        )
    }

    fn time(&mut self) -> String {
        format!("{:02}:{:02}:{:02}", self.below(24), self.below(60), self.below(60))
    }

    fn uuid(&mut self) -> String {
        [8, 4, 4, 4, 12].map(|length| self.hex(length)).join("-")
    }

    /// Lines of lock files, remotes, tables and logs.
    fn lines(&mut self) -> Vec<String> {
        let (version, other) = (self.version(), self.version());
        let (a, b, c) = (self.below(10_000), self.below(10_000), self.below(1_000_000_000_000));
        vec![
            format!("version = \"{version}\""),
            format!("checksum = \"{}\"", self.hex(64)),
            format!("      \"integrity\": \"sha512-{}==\",", self.base64(86)),
            format!(
                "golang.org/x/net v0.0.0-{}{:06}-{} h1:{}=",
                self.date(""),
                a,
                self.hex(12),
                self.base64(43)
            ),
            format!("    \"left-pad\": \">={version} <{other}\", \"_id\": \"left-pad@{version}\","),
            format!("\turl = git@git{a}.example.org:org/repo-{b}.git"),
            format!("{} {} Build {c} +0100\tcommit: {}", self.hex(40), self.hex(40), self.hex(7)),
            format!("{}T{}.{c:012}Z,{a:04}-{b:04},{}", self.date("-"), self.time(), self.uuid()),
            format!("{}-{a:04}-{b:04};{a}.{c:012};-{b},{c:012};4{c:012}", self.date("")),
            format!(
                "({}.{a:04}, -{}.{b:04}), {a}-{b}, {a:04}/{}",
                self.below(180),
                self.below(90),
                2020 + a % 10
            ),
            format!(
                "10.{}.{}.{} - - [17/Nov/2026:{} +0100] \"GET /{c}/{b:04}-{a:04} HTTP/1.1\" 200 {c}",
                a % 256,
                b % 256,
                c % 256,
                self.time()
            ),
            format!(
                "Nov 17 {} host app[{b}]: user@{a}.service took {}.{c:09} ms, id={c:010} {:016x}",
                self.time(),
                a % 100,
                c
            ),
            format!("{:08x}  {}", a * 16, (0..16).map(|_| self.hex(2)).collect::<Vec<_>>().join(" ")),
            format!(
                "[{a}, {b}, {c}], 0{:03o} {:#010x} {:02}.{:02}.{}",
                a % 512,
                c,
                1 + a % 28,
                1 + b % 12,
                1990 + b % 40
            ),
        ]
    }
}

/// All files below a folder that can be read as text, without those of tests.
fn texts_below(folder: PathBuf) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            texts.extend(texts_below(path));
        } else if let Ok(text) = fs::read_to_string(&path) {
            texts.push((path.display().to_string(), text));
        }
    }
    texts
}

#[test]
fn ordinary_lines_are_taken_for_personal_data_once_in_10000() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = policy.parent().unwrap();
    let mut texts = texts_below(policy.join("tests/corpus"));
    texts.retain(|(name, _)| !name.ends_with("people.txt"));
    assert!(texts.len() >= 8, "{texts:?}");
    for folder in ["adapters/src", "bus/src", "contracts/src", "sandbox/src"] {
        texts.extend(texts_below(root.join(folder)));
    }
    for file in ["Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT", "docs/architecture.svg"] {
        texts.push((file.to_owned(), fs::read_to_string(root.join(file)).unwrap()));
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let generated: Vec<String> = (0..5_000).flat_map(|_| random.lines()).collect();
    let mut lines: Vec<&str> = texts.iter().flat_map(|(_, text)| text.lines()).collect();
    let in_files = lines.len();
    lines.extend(generated.iter().map(String::as_str));
    eprintln!("{in_files} lines of files, {} generated lines", generated.len());
    // A field that is a path is judged more strictly than a text.
    for (way, redact) in [("texts", redact_text as fn(&str) -> Option<Redacted>), ("paths", redact_path)] {
        let is_hit = |line: &&&str| redact(line).is_some();
        let hits: Vec<_> = lines.iter().filter(is_hit).collect();
        let in_files = lines[..in_files].iter().filter(is_hit).count();
        eprintln!("as {way}: {in_files} false hits in files, {} in generated lines", hits.len() - in_files);
        assert!(hits.len() * LINES_PER_HIT <= lines.len(), "as {way}: {hits:#?}");
    }
}

#[test]
fn what_people_write_is_found_in_every_line() {
    let people = include_str!("../corpus/people.txt");
    let missed: Vec<&str> = people.lines().skip(1).filter(|line| redact_text(line).is_none()).collect();
    assert_eq!(missed, [""; 0]);
}
