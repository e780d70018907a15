//! The `gwanmun` binary: nothing but the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    gwanmun::cli::main()
}
