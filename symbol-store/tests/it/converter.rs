//! A program that is only the converter, for the tests of this crate. In production, the converter is a subcommand of
//! `varve`.

use std::process::ExitCode;

fn main() -> ExitCode {
    symbol_store::convert::run_child(std::env::args().skip(1))
}
