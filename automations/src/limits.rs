//! The bounds of automations. They are part of the published schema. `docs/limits.md` lists those that a caller can hit.

/// Longest name of an automation: one line for people.
pub const NAME_CHARS_MAX: u32 = 200;
/// Longest goal of an automation: a paragraph for people.
pub const GOAL_CHARS_MAX: u32 = 4_096;
/// Steps of one plan: more is a program.
pub const STEPS_MAX: u32 = 64;
/// Steps after a failure: they tell somebody, and tidy up.
pub const FAILURE_STEPS_MAX: u32 = 16;
/// Triggers of one automation: a few occasions.
pub const TRIGGERS_MAX: u32 = 16;
/// Tags of one automation, for people who search.
pub const TAGS_MAX: u32 = 32;
/// Longest tag: a word or two.
pub const TAG_CHARS_MAX: u32 = 64;
/// Longest template, condition or prompt, in bytes of its source: it is checked before it is read.
pub const TEMPLATE_BYTES_MAX: usize = 8_192;
/// Longest run, in seconds: a day. Time that a person takes to decide does not count.
pub const RUN_SECONDS_MAX: u64 = 86_400;
/// Time of a run whose definition names none, in seconds.
pub const RUN_SECONDS_DEFAULT: u64 = 3_600;
/// Longest step, in seconds, which only a task of many actions takes: an hour, as the slowest queue has.
pub const STEP_SECONDS_MAX: u64 = 3_600;
/// Largest budget of one run, in dollars: a larger one is a slip of the keyboard.
pub const BUDGET_USD_MAX: u64 = 10_000;
/// Words and signs of one expression: each may make it one level deeper, and a thread has only so much stack.
pub const EXPRESSION_TOKENS_MAX: usize = 256;
/// Instructions of one template: some hundred for each item of a long list. The same template stops at the same place everywhere.
pub const TEMPLATE_FUEL: u64 = 500_000;
/// Longest text of one template, in bytes.
pub const RENDERED_BYTES_MAX: usize = 1_048_576;
