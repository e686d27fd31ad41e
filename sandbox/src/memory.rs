//! Who hands out memory: one allocator for the program, another for what lives in the sandbox.
//!
//! An action takes thousands of small pieces of memory in one thread and gives them back in another. The C library's allocator
//! spends a third of the program's own time on that; mimalloc spends a small part of it. For a child it is the other way round: it
//! lives for less than a millisecond, and what it asks for lies in one piece with the C library, while mimalloc lays it out by
//! size, and each page that is touched for the first time is one that the kernel has to copy.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; all that is done here is to pass on what was asked"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering};

use mimalloc::MiMalloc;

use crate::zygote::ZYGOTE_ARGUMENT;

/// The memory of a program with a sandbox.
///
/// ```
/// #[global_allocator]
/// static MEMORY: effectd_sandbox::Memory = effectd_sandbox::Memory;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Memory;

const UNKNOWN: u8 = 0;
const PROGRAM: u8 = 1;
const ZYGOTE: u8 = 2;

/// Which of them this process is. Found out when memory is first asked for, and never changed: what one has handed out, the other
/// cannot take back.
static SIDE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Enough for the path of the program and its first argument; of a longer path the process is taken for a program, which costs time
/// and nothing else.
const COMMAND_LINE_BYTES: usize = 4_096;

impl Memory {
    /// Whether this process was started as a zygote, or comes from one.
    fn in_zygote(self) -> bool {
        match SIDE.load(Ordering::Relaxed) {
            UNKNOWN => find_out(),
            side => side == ZYGOTE,
        }
    }
}

#[cold]
fn find_out() -> bool {
    let mut line = [0; COMMAND_LINE_BYTES];
    let mut arguments = command_line(&mut line).split(|byte| *byte == 0);
    let is_zygote = arguments.nth(1) == Some(ZYGOTE_ARGUMENT.as_bytes());
    let side = if is_zygote { ZYGOTE } else { PROGRAM };
    // There is one thread when memory is first asked for; were there two, they would find the same.
    SIDE.store(side, Ordering::Relaxed);
    is_zygote
}

/// The arguments of this process, each with a zero behind it. Nothing here takes memory.
fn command_line(into: &mut [u8]) -> &[u8] {
    // SAFETY: the path ends with a zero, and nothing but the descriptor comes back.
    let file = unsafe { libc::open(c"/proc/self/cmdline".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return &[];
    }
    // SAFETY: at most as many bytes are written as there is room for, and the descriptor is closed once, by whoever opened it.
    let count = unsafe {
        let count = libc::read(file, into.as_mut_ptr().cast(), into.len());
        libc::close(file);
        count
    };
    usize::try_from(count)
        .ok()
        .and_then(|count| into.get(..count))
        .unwrap_or_default()
}

// SAFETY: both allocators keep to the trait, and which of them is asked does not change while the process lives.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe {
            if self.in_zygote() {
                System.alloc(layout)
            } else {
                MiMalloc.alloc(layout)
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe {
            if self.in_zygote() {
                System.alloc_zeroed(layout)
            } else {
                MiMalloc.alloc_zeroed(layout)
            }
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises; the place is from the same allocator.
        unsafe {
            if self.in_zygote() {
                System.realloc(place, layout, bytes)
            } else {
                MiMalloc.realloc(place, layout, bytes)
            }
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises; the place is from the same allocator.
        unsafe {
            if self.in_zygote() {
                System.dealloc(place, layout);
            } else {
                MiMalloc.dealloc(place, layout);
            }
        }
    }
}
