//! The one binary: parses the command line, hands over to a role or a client, turns errors into an exit status.

mod client;
mod command;
mod config_file;
mod doctor;
mod ending;
mod error_chain;
mod heaps;
mod listen;
mod log;
mod operations;
mod privileges;
mod record;
mod roles;
mod token_file;

use std::process::ExitCode;

use self::command::{AgentCommands, Command};

/// The hidden subcommand that parses one debug file in a process of its own.
const CONVERT_DEBUG_FILE: &str = "convert-debug-file";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().is_some_and(|first| first == CONVERT_DEBUG_FILE) {
        // Before anything else: it gives up its rights first.
        return symbol_store::convert::run_child(arguments);
    }
    ending::usual(&run())
}

fn run() -> anyhow::Result<()> {
    heaps::bound();
    let command = command::parse()?;
    privileges::settle(&command)?;
    match command {
        Command::Up(options) => roles::block_on(roles::up::run(options)),
        Command::Node(options) => roles::block_on(roles::node::run(options)),
        Command::Router(options) => roles::block_on(roles::router::run(options)),
        Command::Agent(options) => match options.command {
            None => roles::block_on(roles::agent::run(options)),
            Some(AgentCommands::Doctor) => doctor::run(),
            Some(AgentCommands::Record(options)) => record::run(options),
        },
        Command::Query(options) => client::query::run(&options),
        Command::Flamegraph(options) => client::flamegraph::run(&options),
        Command::Upload(options) => client::upload::run(&options),
        Command::Admin(command) => client::admin::run(&command),
        Command::Config(effective) => client::print(&effective),
    }
}
