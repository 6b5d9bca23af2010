//! The converter alone, which the tests of this crate start. In production it is a subcommand of `varve`.

use std::process::ExitCode;

fn main() -> ExitCode {
    symbol_store::convert::run_child(std::env::args().skip(1))
}
