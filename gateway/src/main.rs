//! The `gwanmun` binary: nothing but the command line.

use std::process::ExitCode;

/// A call allocates some sixty times, mostly a few bytes: docs/PERFORMANCE.md has what the allocator makes of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gwanmun::cli::main()
}
