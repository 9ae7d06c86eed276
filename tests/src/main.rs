//! The `synod` binary under the name that the tests of this crate start.

use std::process::ExitCode;

fn main() -> ExitCode {
    synod::cli::main()
}
