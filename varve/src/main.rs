//! The only binary: parses the command line, runs a role or a command, and turns errors into an exit status.

mod certs;
mod client;
mod command;
mod doctor;
mod process;
mod record;
mod roles;

use std::process::ExitCode;

use self::command::{AgentCommands, AgentRoleOptions, Command};
use self::process::{exit, privileges};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().is_some_and(|first| first == roles::CONVERT_DEBUG_FILE) {
        // The converter of debug files runs before anything else, because it must first drop the privileges of the
        // process.
        return symbol_store::convert::run_child(arguments);
    }
    exit::code(&run())
}

fn run() -> anyhow::Result<()> {
    let command = command::parse()?;
    if let Command::Agent(AgentRoleOptions { command: None, token_file: Some(file), .. }) = &command {
        file.watch()?;
    }
    privileges::restrict(&command)?;
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
