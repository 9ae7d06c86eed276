//! The `synod` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    synod::cli::main()
}
