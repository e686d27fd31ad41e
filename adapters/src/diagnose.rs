//! `core.diagnose_error`: says what an error message usually means and what to do next.
//!
//! It reads only the text of its parameters, so the same text always gets the same answer.

use effectd_contracts::RiskTier;

use crate::limits::DIAGNOSE_BYTES_MAX;
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct DiagnoseError;

/// A kind of error.
struct Pattern {
    category: &'static str,
    /// Texts that identify it, separated by `|`.
    words: &'static str,
    cause: &'static str,
    next: &'static str,
    retry: bool,
}

const PATTERNS: &[Pattern] = &[
    Pattern {
        category: "disk_full",
        words: "no space left on device|enospc|disk quota exceeded|edquot",
        cause: "The disk or its quota is full.",
        next: "Free some space, then try again.",
        retry: true,
    },
    Pattern {
        category: "permission_denied",
        words: "permission denied|operation not permitted|eacces|eperm|access is denied",
        cause: "The program lacks permission for a path or an operation.",
        next: "Check the owner and permissions of the path, or ask for a wider policy.",
        retry: false,
    },
    Pattern {
        category: "out_of_memory",
        words: "out of memory|cannot allocate memory|oom-kill|enomem|killed process|heap out of",
        cause: "There was not enough memory.",
        next: "Process less at a time, or raise the memory limit.",
        retry: false,
    },
    Pattern {
        category: "program_not_found",
        words: "command not found|is not recognized as an internal|executable file not found",
        cause: "The program is not installed or not on the path.",
        next: "Install it, or use an installed program.",
        retry: false,
    },
    Pattern {
        category: "module_not_found",
        words: "modulenotfounderror|cannot find module|unresolved import|no module named|unresolved external",
        cause: "A library that the code needs is missing.",
        next: "Install the dependency, or correct its name.",
        retry: false,
    },
    Pattern {
        category: "not_found",
        words: "no such file or directory|enoent|file not found|does not exist|404 not found",
        cause: "A file, path or resource does not exist.",
        next: "Check the name and the folder; files.list and files.search help.",
        retry: false,
    },
    Pattern {
        category: "merge_conflict",
        words: "merge conflict|conflict (content)|<<<<<<< |patch does not apply|hunk failed",
        cause: "Two changes conflict.",
        next: "Read the current file and make the change again.",
        retry: false,
    },
    Pattern {
        category: "syntax",
        words: "syntax error|syntaxerror|unexpected token|parse error|unexpected end of|expected one of",
        cause: "The text has a syntax error.",
        next: "Check the line that the message names, and the one before it.",
        retry: false,
    },
    Pattern {
        category: "type_mismatch",
        words: "mismatched types|typeerror|type mismatch|cannot convert|is not assignable to",
        cause: "A value has the wrong type.",
        next: "Compare the actual type with the expected type at that line.",
        retry: false,
    },
    Pattern {
        category: "address_in_use",
        words: "address already in use|eaddrinuse|port is already allocated",
        cause: "Another program uses the port.",
        next: "Stop the other program, or choose another port.",
        retry: false,
    },
    Pattern {
        category: "network",
        words: "connection refused|econnrefused|connection reset|network is unreachable|\
            name or service not known|could not resolve host|temporary failure in name resolution|\
            enetunreach",
        cause: "The server cannot be reached.",
        next: "effectd's sandbox has no network; elsewhere, check the name, the port and whether the service runs.",
        retry: true,
    },
    Pattern {
        category: "certificate",
        words: "certificate verify failed|certificate has expired|self signed certificate|unknown ca",
        cause: "The server's certificate is not trusted.",
        next: "Check the clock, the host name and the trusted roots; do not disable verification.",
        retry: false,
    },
    Pattern {
        category: "timeout",
        words: "timed out|timeout|deadline exceeded|etimedout",
        cause: "It exceeded its time limit.",
        next: "Allow more time or process less at once; a retry may help.",
        retry: true,
    },
    Pattern {
        category: "crash",
        words: "segmentation fault|sigsegv|core dumped|panicked at|stack overflow|assertion failed",
        cause: "The program crashed.",
        next: "The first lines of the trace name the location; reduce the input until the crash disappears.",
        retry: false,
    },
];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The message, with the lines around it.
    #[serde(default)]
    #[schemars(length(max = DIAGNOSE_BYTES_MAX))]
    error_text: String,
}

impl TypedTool for DiagnoseError {
    const ID: &'static str = "core.diagnose_error";
    const DESCRIPTION: &'static str = "Explains what an error message usually means, what to do next, and whether a \
        retry may help. It uses the text alone. Use it when an error message is not clear.";
    const ALIASES: &'static [&'static str] = &["diagnose_error"];
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "category": { "type": "string", "x-public": true },
            "cause": { "type": "string", "x-public": true },
            "next_steps": { "type": "array", "items": { "type": "string" }, "x-public": true },
            "retry_may_help": flag(),
            "also": { "type": "array", "items": { "type": "string" }, "x-public": true },
        });
        let mut spec = ToolSpec {
            caps_required: params::caps(["diagnose"]),
            risk_tier: Some(RiskTier::R1),
            ..params::reads::<Self>(&["category", "cause", "next_steps", "retry_may_help"], result)
        };
        // It reads nothing of a space, so the space is optional.
        if let Some(schema) = spec.params_schema.as_object_mut() {
            schema.remove("required");
        }
        spec
    }

    fn example(&self) -> Value {
        json!({ "error_text": "cp: cannot create regular file 'x': No space left on device" })
    }

    /// Quality is 1 for a known error, and 0.5 otherwise.
    fn run(&self, _: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let text = call.params.error_text.to_lowercase();
        if let Some(code) = own_code(&text) {
            let result = json!({
                "category": code.as_str(), "cause": code.meaning(), "retry_may_help": code.retryable(),
                "next_steps": ["This is a code of effectd; `effectd policy explain` and the receipt say more."],
            });
            return Ok(ToolOutput::new(result, Some(1.0)));
        }
        let mut known =
            PATTERNS.iter().filter(|pattern| pattern.words.split('|').any(|word| text.contains(word)));
        let Some(first) = known.next() else {
            let next = if text.trim().is_empty() {
                "Put the error message into error_text."
            } else {
                "Give more of the output: the first error is often above the last."
            };
            let result = json!({
                "category": "unknown", "cause": "The text does not show the cause.", "next_steps": [next],
                "retry_may_help": false,
            });
            return Ok(ToolOutput::new(result, Some(0.5)));
        };
        let also: Vec<_> = known.map(|pattern| pattern.category).collect();
        let result = json!({
            "category": first.category, "cause": first.cause, "next_steps": [first.next],
            "retry_may_help": first.retry, "also": also,
        });
        Ok(ToolOutput::new(result, Some(1.0)))
    }
}

/// A code of effectd itself, as a word in the text.
fn own_code(text: &str) -> Option<Code> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = text.split(|c| !is_word(c)).filter(|word| word.contains('_'));
    words.find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tests::space::TestSpace;
    use effectd_contracts::RiskTier;

    fn category(text: &str) -> String {
        let output = TestSpace::new().run(&DiagnoseError, json!({ "error_text": text })).unwrap();
        output.result["category"].as_str().unwrap().to_owned()
    }

    #[test]
    fn common_errors_are_known() {
        for (text, wanted) in [
            ("cp: write error: No space left on device", "disk_full"),
            ("bash: foo: command not found", "program_not_found"),
            ("thread 'main' panicked at src/main.rs:3", "crash"),
            ("error[E0308]: mismatched types", "type_mismatch"),
            ("idempotency_conflict: this key was used before", "idempotency_conflict"),
            ("something odd", "unknown"),
        ] {
            assert_eq!(category(text), wanted, "{text}");
        }
        assert_eq!(DiagnoseError.spec().tier(), RiskTier::R1);
    }

    #[test]
    fn nothing_given_is_no_error() {
        let output = TestSpace::new().run_exactly(&DiagnoseError, json!({})).unwrap();
        assert_eq!(output.result["category"], "unknown");
    }
}
