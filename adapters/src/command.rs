//! `command.run`: runs one program of the system in the space, without a shell.
#![expect(clippy::disallowed_types, reason = "it runs in the child: this is the tool that starts programs")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use effectd_contracts::{Artifact, BaseProfile, SafetyClass, SandboxProfile, SideEffect};

use crate::limits::{
    ARGV_MAX, ARGV_WORD_BYTES_MAX, COMMAND_TIME_MAX, OUTPUT_HEAD_BYTES_MAX, OUTPUT_KEPT_BYTES_MAX,
};
use crate::prelude::*;
use crate::side_channel::ToolChannel;

/// Where programs are searched, after the folders that the policy gives to a named command. The sandbox lets nothing in the space
/// be executed but what is in a cache.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

#[derive(Debug, Clone, Copy)]
pub struct Run;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The program and its arguments, each as one item: ["git", "status"].
    #[schemars(
        length(min = 1, max = ARGV_MAX),
        inner(length(max = ARGV_WORD_BYTES_MAX)),
        extend("x-command" = true)
    )]
    argv: Vec<String>,
    /// The folder to run it in. Default: the root of the space.
    directory_path: Option<FolderPath>,
    /// What the program reads from its standard input. Default: nothing.
    #[serde(default)]
    stdin: String,
}

impl TypedTool for Run {
    const ID: &'static str = "command.run";
    const DESCRIPTION: &'static str = "Runs one program of the system in the space, with an argument list and never \
        through a shell, without network, and only if the policy lists the program or names the command. Use it for \
        builds, tests and git; change files with the file tools, which can be undone.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let number = json!({ "type": "integer", "x-public": true });
        let kept =
            |of: &str| json!({ "type": "integer", "minimum": 0, "x-public": true, "x-artifact-bytes": of });
        let result = json!({
            "exit_code": number, "signal": number, "stdout": text(), "stderr": text(),
            "stdout_bytes": count(), "stderr_bytes": count(),
            "stdout_kept_bytes": kept("stdout"), "stderr_kept_bytes": kept("stderr"), "dry_run": flag(),
        });
        ToolSpec {
            caps_required: params::caps(["command.run", "workspace:shared:write"]),
            side_effects: BTreeSet::from([SideEffect::ProcessExec, SideEffect::FilesystemWrite]),
            safety_class: SafetyClass::Medium,
            reversible: false,
            timeout_ms: COMMAND_TIME_MAX.as_millis() as u64,
            resource: params::resource("space:{space_id}"),
            sandbox_profile: SandboxProfile { base: BaseProfile::Exec, high_isolation: false },
            ..params::writes::<Self>(&["stdout", "stderr", "stdout_bytes", "stderr_bytes"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "argv": ["wc", "-l", "notes/w36.txt"] })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        let Params { argv, .. } = params;
        let program = argv.first().map_or("", String::as_str);
        let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
        if !program.chars().all(plain) || program.starts_with(['.', '-']) || program.is_empty() {
            let why = "give the name of a program without a path";
            return Err(params::invalid("argv/0", why));
        }
        if argv.iter().any(|word| word.contains('\0')) {
            return Err(params::invalid("argv", "an argument contains a NUL byte"));
        }
        let outside = |folder: &FolderPath| folder.0.base() != Base::Workspace;
        if params.directory_path.as_ref().is_some_and(outside) {
            let why = "it must be workspace or a folder in it";
            return Err(params::invalid("directory_path", why));
        }
        Ok(())
    }

    /// Quality is 1 for a program that succeeds, and 0 otherwise. Output that is too long for the result goes to the side
    /// channel while the program runs, and becomes an artifact.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let mut child = start(workspace, &call.params)?;
        let stdin = call.params.stdin.as_str();
        let (outputs, status) = std::thread::scope(|scope| {
            let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            // Errors are ignored: a program need not read its input.
            scope.spawn(move || input.map(|mut input| input.write_all(stdin.as_bytes())));
            let to = workspace.side_channel();
            let out = scope.spawn(move || out.map(|out| Kept::read(out, STDOUT, to)).unwrap_or_default());
            let err = scope.spawn(move || err.map(|err| Kept::read(err, STDERR, to)).unwrap_or_default());
            let status = child.wait();
            let joined = [out.join(), err.join()].map(Result::unwrap_or_default);
            (joined, status)
        });
        let status = status.map_err(|error| failed(&format!("the program cannot be waited for: {error}")))?;
        let [out, err] = outputs;
        let mut result = json!({
            "stdout": out.head(), "stdout_bytes": out.total,
            "stderr": err.head(), "stderr_bytes": err.total,
        });
        if let Some(code) = status.code() {
            result["exit_code"] = json!(code);
        }
        if let Some(signal) = status.signal() {
            result["signal"] = json!(signal);
        }
        let long = [("stdout", STDOUT, &out), ("stderr", STDERR, &err)].into_iter();
        let artifacts = long.filter(|(_, _, kept)| kept.is_long()).map(|(name, stream, _)| Artifact {
            name: name.to_owned(),
            stream,
            must: false,
        });
        Ok(ToolOutput {
            result,
            quality: Some(if status.success() { 1.0 } else { 0.0 }),
            artifacts: artifacts.collect(),
        })
    }

    fn dry_run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        directory(workspace, &call.params)?;
        program(&call.params.argv[0], &search_path(workspace))?;
        let result = json!({ "stdout": "", "stderr": "", "stdout_bytes": 0, "stderr_bytes": 0 });
        Ok(params::dry(result))
    }
}

fn failed(why: &str) -> Failure {
    Failure::new(Code::ToolFailed, Phase::Dispatch, why)
}

/// The folders in which programs are searched: those of the policy, each with its `bin`, come first.
fn search_path(workspace: &Workspace<'_>) -> String {
    let given = workspace.programs().iter().filter_map(|folder| folder.to_str());
    let given = given.map(|folder| format!("{folder}/bin:{folder}:"));
    given.chain([PATH.to_owned()]).collect()
}

fn program(name: &str, search_path: &str) -> Result<PathBuf, Failure> {
    let mut places = search_path.split(':').map(|folder| Path::new(folder).join(name));
    places.find(|path| path.is_file()).ok_or_else(|| {
        let message = format!(
            "there is no program {name} in {search_path}; the policy may list programs that are not installed"
        );
        Failure::new(Code::FileNotFound, Phase::Dispatch, message)
    })
}

fn directory(workspace: &Workspace<'_>, params: &Params) -> Result<String, Failure> {
    let Some(FolderPath(folder)) = &params.directory_path else {
        return Ok(workspace.root_name().to_owned());
    };
    let (root, below) = (Path::new(workspace.root_name()), folder.relative());
    // The program starts in the folder by its path. If a link replaces the folder, the sandbox still confines the program. A folder
    // that a named command may change is a mount of its own, which the walk does not enter.
    let is_mounted = || {
        let (real, root) = (root.join(&below).canonicalize(), root.canonicalize());
        matches!((real, root), (Ok(real), Ok(root)) if real.is_dir() && real == root.join(&below))
    };
    if let Err(problem) = workspace.walk(folder, false)
        && !is_mounted()
    {
        return Err(problem.into());
    }
    Ok(format!("{}/{below}", workspace.root_name()))
}

fn start(workspace: &Workspace<'_>, params: &Params) -> Result<Child, Failure> {
    let Params { argv, .. } = params;
    let path = search_path(workspace);
    Command::new(program(&argv[0], &path)?)
        .args(&argv[1..])
        .current_dir(directory(workspace, params)?)
        .env_clear()
        .envs([("PATH", path.as_str()), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&format!("{} cannot be started: {error}", argv[0])))
}

const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// The beginning of an output, its whole length, and how much of it is stored.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    total: u64,
    kept: u64,
}

impl Kept {
    /// Reads to the end, so that a full pipe never blocks the program, and sends what may be stored.
    fn read(mut from: impl Read, stream: u8, to: &dyn ToolChannel) -> Self {
        let (mut kept, mut taken) = (Self::default(), true);
        let mut piece = [0; 65_536];
        while let Ok(count) = from.read(&mut piece) {
            if count == 0 {
                break;
            }
            kept.total += count as u64;
            let mut piece = &piece[..count];
            if !kept.is_long() {
                kept.head.extend_from_slice(piece);
                if !kept.is_long() {
                    kept.kept = kept.total;
                    continue;
                }
                (kept.kept, piece) = (0, &kept.head);
            }
            let room = OUTPUT_KEPT_BYTES_MAX.saturating_sub(kept.kept);
            let now = piece.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            if now > 0 {
                // If the receiver is gone, the program still runs to its end.
                taken = taken && to.send_piece(stream, &piece[..now]).is_ok();
                kept.kept += if taken { now as u64 } else { 0 };
            }
        }
        kept
    }

    /// Whether the output is longer than the part that fits into the result.
    fn is_long(&self) -> bool {
        self.head.len() > OUTPUT_HEAD_BYTES_MAX
    }

    /// The part that is in the result; bytes that are not UTF-8 are replaced.
    fn head(&self) -> String {
        let end = self.head.len().min(OUTPUT_HEAD_BYTES_MAX);
        String::from_utf8_lossy(&self.head[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use crate::tool::Tool;

    #[test]
    fn words_are_words_and_no_shell_reads_them() {
        let place = TestSpace::new();
        let params = json!({ "argv": ["echo", "$HOME; rm -rf /", "`id`"] });
        let output = place.run(&Run, params).unwrap();
        assert_eq!(output.result["stdout"], "$HOME; rm -rf / `id`\n");
        assert_eq!((output.quality, &output.result["exit_code"]), (Some(1.0), &json!(0)));
        let piped = place.run(&Run, json!({ "argv": ["wc", "-c"], "stdin": "12345" })).unwrap();
        assert_eq!(piped.result["stdout"], "5\n");
    }

    #[test]
    fn a_program_that_fails_is_told_with_its_code() {
        let place = TestSpace::new();
        let output = place.run(&Run, json!({ "argv": ["ls", "none"] })).unwrap();
        assert_eq!((output.quality, output.result["exit_code"] == 0), (Some(0.0), false));
        assert!(output.result["stderr"].as_str().unwrap().contains("none"));
        let failure = place.run(&Run, json!({ "argv": ["no-such-program"] })).unwrap_err();
        assert_eq!(failure.code, Code::FileNotFound);
    }

    #[test]
    fn long_output_is_kept_beside_the_result_up_to_its_bound() {
        let place = TestSpace::new();
        let output = place.run(&Run, json!({ "argv": ["seq", "1", "200000"] })).unwrap();
        let total = output.result["stdout_bytes"].as_u64().unwrap();
        assert_eq!(output.result["stdout"].as_str().unwrap().len(), OUTPUT_HEAD_BYTES_MAX);
        let named: Vec<_> = output.artifacts.iter().map(|artifact| &*artifact.name).collect();
        assert_eq!(named, ["stdout"]);
        assert_eq!(place.said(STDOUT).unwrap().len() as u64, total);
        assert!(
            output.result.get("stdout_kept_bytes").is_none(),
            "how much is kept is for those to say who keep it"
        );
        let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
        assert!(place.said(STDOUT).unwrap() == expected.as_bytes());
        assert_eq!(place.said(STDERR), None, "what is short is in the result alone");
    }

    /// A reader of this many equal bytes.
    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let count = into.len().min(usize::try_from(self.0).unwrap_or(usize::MAX));
            into[..count].fill(b'x');
            self.0 -= count as u64;
            Ok(count)
        }
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted_and_not_kept() {
        let (max, line) = (OUTPUT_KEPT_BYTES_MAX, crate::tests::space::Line::default());
        let kept = Kept::read(Endless(max + 100_000), STDOUT, &line);
        assert_eq!((kept.total, kept.kept), (max + 100_000, max));
        assert_eq!(line.length(STDOUT), max);
        let unheard = Kept::read(Endless(1 << 20), STDOUT, &crate::side_channel::Closed);
        assert_eq!((unheard.total, unheard.kept), (1 << 20, 0));
    }

    #[test]
    fn only_plain_names_of_programs_are_taken() {
        for name in ["", "/bin/ls", "../ls", "./ls", "a/b", "-x", ".", "l s", "ls\0"] {
            let params = json!({ "argv": [name] });
            let failure = Tool::check(&Run, params.as_object().unwrap()).unwrap_err();
            assert_eq!(failure.code, Code::ParamsInvalid, "{name:?}");
        }
        let outside = json!({ "argv": ["ls"], "directory_path": "tmp/x" });
        assert!(Tool::check(&Run, outside.as_object().unwrap()).is_err());
        let nul = json!({ "argv": ["ls", "a\0b"] });
        assert!(Tool::check(&Run, nul.as_object().unwrap()).is_err());
    }
}
