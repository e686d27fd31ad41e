//! The compiler of seccomp filters: rules about system calls become programs for the kernel, as balanced trees.
//!
//! When a filter is installed, the kernel interprets it once for every known call; a linear list costs ten times as much
//! as a tree. One set of rules gives two programs: the *base*, installed once in the zygote and inherited by every
//! child, and the *narrow* one, which takes away what a child needs only to confine itself.

use super::syscalls::NUMBER_END;
use crate::sys::seccomp::Program;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// The process is killed with SIGSYS.
    Kill,
    /// The kernel announces the call to the runtime, which decides.
    Announce,
    /// The call fails with this errno, unannounced.
    Errno(u16),
    /// The other filter refuses the call, so this one takes whichever verdict makes the tree smaller.
    Whatever,
}

/// A condition on the low half of one argument. All conditions are on descriptors, flags and commands, of which the
/// kernel reads only the low half, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) argument: u32,
    pub(crate) test: Test,
}

/// When the system call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Test {
    /// If any of these bits is set.
    DenyBits(u32),
    /// If the argument is one of these.
    Deny(Vec<u32>),
    /// Unless the argument is one of these.
    Allow(Vec<u32>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Leaf {
    Plain(Verdict),
    /// All conditions must permit the call.
    Conditional(Vec<Condition>),
}

const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;
const ARCH_X86_64: u32 = 0xC000_003E;
/// System calls through the x32 entry carry this bit.
const X32_BIT: u32 = 0x4000_0000;

impl Verdict {
    fn code(self) -> u32 {
        match self {
            Self::Allow | Self::Whatever => libc::SECCOMP_RET_ALLOW,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Self::Announce => libc::SECCOMP_RET_USER_NOTIF,
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | u32::from(errno),
        }
    }
}

/// Compiles `verdict` for every number of the table, and `unknown` for those beyond it. System calls through the 32-bit
/// and x32 entries always kill the process. A call that one of its conditions refuses is announced.
pub(crate) fn compile(
    verdict: impl Fn(u32) -> Verdict,
    conditions: impl Fn(u32) -> Vec<Condition>,
    unknown: Verdict,
) -> Program {
    let mut ranges: Vec<(u32, Leaf)> = Vec::new();
    let mut push = |start: u32, leaf: Leaf| {
        let same = ranges.last().is_some_and(|(_, last)| *last == leaf);
        if !same && leaf != Leaf::Plain(Verdict::Whatever) {
            ranges.push((start, leaf));
        }
    };
    for number in 0..NUMBER_END {
        let plain = verdict(number);
        let conditions = conditions(number);
        if plain == Verdict::Allow && !conditions.is_empty() {
            push(number, Leaf::Conditional(conditions));
        } else {
            push(number, Leaf::Plain(plain));
        }
    }
    push(NUMBER_END, Leaf::Plain(unknown));
    push(X32_BIT, Leaf::Plain(Verdict::Kill));
    if let Some(first) = ranges.first_mut() {
        first.0 = 0;
    }
    let mut steps = vec![
        (LOAD_WORD, 0, 0, OFFSET_ARCH),
        (JUMP_EQUAL, 1, 0, ARCH_X86_64),
        (RETURN, 0, 0, Verdict::Kill.code()),
        (LOAD_WORD, 0, 0, OFFSET_NUMBER),
    ];
    emit_tree(&ranges, &mut steps);
    Program(steps)
}

fn emit_tree(ranges: &[(u32, Leaf)], steps: &mut Vec<(u16, u8, u8, u32)>) {
    match ranges {
        [] => steps.push((RETURN, 0, 0, Verdict::Kill.code())),
        [(_, Leaf::Plain(verdict))] => steps.push((RETURN, 0, 0, verdict.code())),
        [(_, Leaf::Conditional(conditions))] => {
            conditions.iter().for_each(|condition| emit_condition(condition, steps));
            steps.push((RETURN, 0, 0, Verdict::Allow.code()));
        }
        [_, _, ..] => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let mut left = Vec::new();
            emit_tree(low, &mut left);
            let border = high.first().map_or(0, |(start, _)| *start);
            match u8::try_from(left.len()) {
                Ok(skip) => steps.push((JUMP_AT_LEAST, skip, 0, border)),
                // Conditional jumps reach 255 steps, plain ones any number.
                Err(_) => {
                    steps.push((JUMP_AT_LEAST, 0, 1, border));
                    steps.push((JUMP, 0, 0, left.len() as u32));
                }
            }
            steps.extend(left);
            emit_tree(high, steps);
        }
    }
}

/// Announces a call that the condition refuses; otherwise goes on behind it.
fn emit_condition(condition: &Condition, steps: &mut Vec<(u16, u8, u8, u32)>) {
    steps.push((LOAD_WORD, 0, 0, OFFSET_ARGUMENTS + 8 * condition.argument));
    // On a match, jumps over the remaining tests and one step more.
    let mut find = |values: &[u32]| {
        for (at, value) in values.iter().enumerate() {
            steps.push((JUMP_EQUAL, (values.len() - at) as u8, 0, *value));
        }
    };
    match &condition.test {
        Test::DenyBits(bits) => steps.push((JUMP_ANY_BIT, 0, 1, *bits)),
        Test::Deny(values) => {
            find(values);
            steps.push((JUMP, 0, 0, 1));
        }
        Test::Allow(values) => find(values),
    }
    steps.push((RETURN, 0, 0, Verdict::Announce.code()));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// Interprets a program as the kernel would; the tests check the compiler against it.
    fn run(program: &Program, arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut accumulator = 0u32;
        let mut at = 0usize;
        loop {
            let (code, yes, no, constant) = program.0[at];
            at += 1;
            let jump = |taken: bool| if taken { usize::from(yes) } else { usize::from(no) };
            match code {
                LOAD_WORD => {
                    accumulator = match constant {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCH => arch,
                        offset => arguments[((offset - OFFSET_ARGUMENTS) / 8) as usize] as u32,
                    }
                }
                JUMP_EQUAL => at += jump(accumulator == constant),
                JUMP_AT_LEAST => at += jump(accumulator >= constant),
                JUMP_ANY_BIT => at += jump(accumulator & constant != 0),
                JUMP => at += constant as usize,
                RETURN => return constant,
                other => panic!("unexpected instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn every_number_gets_its_own_verdict() {
        let verdict = |n: u32| match n % 7 {
            0 => Verdict::Kill,
            1 => Verdict::Announce,
            2 => Verdict::Errno(38),
            _ => Verdict::Allow,
        };
        let program = compile(verdict, |_| Vec::new(), Verdict::Errno(1));
        for number in 0..NUMBER_END {
            assert_eq!(run(&program, ARCH_X86_64, number, [0; 6]), verdict(number).code(), "{number}");
        }
        assert_eq!(run(&program, ARCH_X86_64, NUMBER_END + 5, [0; 6]), Verdict::Errno(1).code());
    }

    #[test]
    fn other_entries_to_the_kernel_kill() {
        let program = compile(|_| Verdict::Allow, |_| Vec::new(), Verdict::Allow);
        assert_eq!(run(&program, 0x4000_0003, 1, [0; 6]), Verdict::Kill.code(), "the 32-bit entry");
        assert_eq!(run(&program, ARCH_X86_64, X32_BIT | 1, [0; 6]), Verdict::Kill.code(), "the x32 entry");
        assert_eq!(run(&program, ARCH_X86_64, u32::MAX, [0; 6]), Verdict::Kill.code());
    }

    #[test]
    fn conditions_look_at_the_low_half_of_their_argument() {
        let rules = [
            (5, Condition { argument: 1, test: Test::Deny(vec![0x5412, 0x541c]) }),
            (9, Condition { argument: 0, test: Test::Allow(vec![3, 4]) }),
            (11, Condition { argument: 2, test: Test::DenyBits(0o6000) }),
            (13, Condition { argument: 0, test: Test::Allow(vec![1]) }),
            (13, Condition { argument: 1, test: Test::Allow(vec![0x80005]) }),
            (13, Condition { argument: 2, test: Test::Deny(vec![7, 8]) }),
        ];
        let find = |n: u32| rules.iter().filter(|(at, _)| *at == n).map(|(_, c)| c.clone()).collect();
        let program = compile(|_| Verdict::Allow, find, Verdict::Kill);
        let ask = |n, arguments| run(&program, ARCH_X86_64, n, arguments);
        let (yes, no) = (Verdict::Allow.code(), Verdict::Announce.code());
        assert_eq!(ask(5, [0, 0x5412, 0, 0, 0, 0]), no);
        assert_eq!(ask(5, [0, 0xffff_ffff_0000_541c, 0, 0, 0, 0]), no, "high bits hide nothing");
        assert_eq!(ask(5, [0, 0x5413, 0, 0, 0, 0]), yes);
        assert_eq!(
            [ask(9, [3, 0, 0, 0, 0, 0]), ask(9, [4, 0, 0, 0, 0, 0]), ask(9, [5, 0, 0, 0, 0, 0])],
            [yes, yes, no]
        );
        assert_eq!([ask(11, [0, 0, 0o644, 0, 0, 0]), ask(11, [0, 0, 0o4755, 0, 0, 0])], [yes, no]);
        let all = [[1, 0x80005, 0], [2, 0x80005, 0], [1, 2, 0], [1, 0x80005, 7], [1, 0x80005, 8]];
        let all = all.map(|[a, b, c]| ask(13, [a, b, c, 0, 0, 0]));
        assert_eq!(all, [yes, no, no, no, no], "every condition of a call must hold");
    }
}
