//! The bounds of tools. Each is named in `docs/limits.md`, and a test keeps the two in step.

/// Largest call into the sandbox: a request of the largest size, with what the executor adds around it.
pub const CALL_BYTES_MAX: usize = 1_114_112;
/// Longest path a tool takes, as Linux has it.
pub const PATH_BYTES_MAX: usize = 4_096;
/// Most folders in one path: bounds the work of creating them.
pub const PATH_DEPTH_MAX: usize = 64;
