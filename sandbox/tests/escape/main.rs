//! Escape tests: one promise per file, each tested in real children, as root and as an ordinary user.
//!
//! This program is everything at once, so that the tests attack what ships: the runtime that calls, the zygote, the children
//! that attack, and — started as `__control` — the same attack without any sandbox, which must succeed. As root it runs all
//! promises, then drops to an ordinary uid and runs them again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr)]
#![allow(unsafe_code, reason = "attacks are raw system calls")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests start programs and use sockets"
)]

mod ground;
mod harness;
mod raw;

mod banned;
mod bombs;
mod ceilings;
mod entries;
mod execution;
mod files_outside;
mod honest;
mod inheritance;
mod liars;
mod links;
mod load;
mod narrowing;
mod neighbours;
mod network;
mod ownership;
mod pieces;
mod processes;
mod replies;
mod smoke;
mod survivors;
mod unsupported;

use ground::{Attack, Promise};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn promises() -> Vec<Promise> {
    let all = [
        smoke::promises(),
        files_outside::promises(),
        links::promises(),
        inheritance::promises(),
        network::promises(),
        processes::promises(),
        banned::promises(),
        entries::promises(),
        ownership::promises(),
        narrowing::promises(),
        liars::promises(),
        bombs::promises(),
        neighbours::promises(),
        execution::promises(),
        ceilings::promises(),
        honest::promises(),
        load::promises(),
        pieces::promises(),
        replies::promises(),
        survivors::promises(),
        unsupported::promises(),
    ];
    all.into_iter().flatten().collect()
}

fn attacks() -> Vec<(&'static str, Attack)> {
    let all = [
        raw::ATTACKS,
        smoke::ATTACKS,
        links::ATTACKS,
        inheritance::ATTACKS,
        network::ATTACKS,
        banned::ATTACKS,
        entries::ATTACKS,
        ownership::ATTACKS,
        liars::ATTACKS,
        bombs::ATTACKS,
        neighbours::ATTACKS,
        execution::ATTACKS,
        ceilings::ATTACKS,
        honest::ATTACKS,
        load::ATTACKS,
        pieces::ATTACKS,
        replies::ATTACKS,
        survivors::ATTACKS,
    ];
    all.concat()
}

fn main() -> std::process::ExitCode {
    effectd_sandbox::init(ground::dispatch);
    harness::main()
}
