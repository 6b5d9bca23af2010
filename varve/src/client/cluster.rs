//! `varve admin tenant`, `token` and `cluster`: read and change the state of the meta group, over the ports of nodes.
//!
//! A dry run applies the change to a copy of the state, with the code with which nodes apply it.

mod connection;
mod epoch;
mod members;
mod tenant;
mod token;
mod view;

use anyhow::bail;
use node::meta::{Applied, MetaState};
use proto::meta::{Command, State};

use self::connection::Connection;
use crate::command::{AdminCommands, ChangeOptions, ClusterCommands, ClusterOptions, Time};
use crate::roles::block_on_runtime;

/// Runs a command of this module.
pub(crate) fn run(command: &AdminCommands) -> anyhow::Result<()> {
    block_on_runtime(async {
        match command {
            AdminCommands::Tenant(command) => tenant::run(command).await,
            AdminCommands::Token(command) => token::run(command).await,
            AdminCommands::Cluster(ClusterOptions { nodes, command }) => match command {
                None => view::run(nodes).await,
                Some(ClusterCommands::Epoch(options)) => epoch::run(options).await,
                Some(ClusterCommands::Accept(options)) => members::accept(options).await,
                Some(ClusterCommands::AddShards(options)) => members::add_shards(options).await,
                Some(ClusterCommands::Move(options)) => members::move_member(options).await,
            },
            _ => bail!("not a command for nodes"),
        }
    })
}

/// Proposes a command, or only checks it in a dry run. Returns true if it changes the state.
///
/// # Errors
/// The command contradicts the state, or no node accepts it. The text says what to do.
async fn change(
    connection: &Connection,
    state: State,
    command: &Command,
    options: &ChangeOptions,
) -> anyhow::Result<bool> {
    if !options.dry_run {
        return connection.propose(&state, command).await;
    }
    let index = state.revision.saturating_add(1);
    Ok(MetaState::from(state).apply(index, Time::now().0, command)? == Applied::Changed)
}

/// Returns what a change did, as the beginning of a sentence.
fn outcome(is_changed: bool, options: &ChangeOptions, done: &str, planned: &str) -> String {
    match (is_changed, options.dry_run) {
        (false, _) => "nothing changes:".to_owned(),
        (true, false) => done.to_owned(),
        (true, true) => format!("dry run: {planned}"),
    }
}
