//! The TOML file: a flat table whose keys are the long flags. Its values become the defaults of the command line, so
//! that one parser checks all of them.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{ArgAction, ArgMatches, Command};

/// Values of a config file. The keys are the long flags of the options, without the dashes.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    name: String,
    values: Vec<(String, String)>,
}

/// Returns the path of the config file from the command line or `VARVE_CONFIG`. Other arguments are not checked here,
/// because the full parser needs the values of the file first.
pub(crate) fn path_from_arguments(arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--config") => return arguments.next().map(PathBuf::from),
            Some(argument) => {
                if let Some(path) = argument.strip_prefix("--config=") {
                    return Some(PathBuf::from(path));
                }
            }
            None => {}
        }
    }
    std::env::var_os("VARVE_CONFIG").map(PathBuf::from)
}

impl ConfigFile {
    /// Reads the file at `path`. Without a path, there are no values.
    pub(crate) fn read(path: Option<impl AsRef<Path>>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).with_context(|| format!("config file {}", path.display()))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses the text of a config file. `name` is the file's name for error messages.
    pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let table: toml::Table = text.parse().with_context(|| format!("config file {name}"))?;
        let mut values = Vec::new();
        for (key, value) in table {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(boolean) => boolean.to_string(),
                other => {
                    bail!("config file {name}: {key} is a {}, not text, a number or true or false", other.type_str())
                }
            };
            values.push((key, value));
        }
        Ok(Self { name: name.to_owned(), values })
    }

    /// Sets the values of the file as defaults of the options of `command`, in the subcommands that run roles and below
    /// them. Other subcommands get no defaults, because their `--endpoint` has another meaning than the agent's.
    pub(crate) fn into_defaults(self, mut command: Command) -> anyhow::Result<Command> {
        let roles = ["up", "node", "router", "agent", "config"];
        for (key, value) in self.values {
            let mut known = false;
            for role in roles {
                command = command.mut_subcommand(role, |role| with_default(role, &key, &value, &mut known));
            }
            if !known {
                bail!("config file {}: no role has an option {key:?}: see `varve up --help`", self.name);
            }
        }
        Ok(command)
    }
}

/// Sets the default of the option `key` in a command and its subcommands, if they have the option. Sets `known` to true
/// if the command has it.
fn with_default(command: Command, key: &str, value: &str, known: &mut bool) -> Command {
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(key));
    let Some(id) = argument.map(|argument| argument.get_id().clone()) else { return command };
    *known = true;
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = command.mut_arg(id, |argument| argument.default_value(value.to_owned()));
    below
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, |below| with_default(below, key, value, known)))
}

/// Returns the effective options of `varve config`, whose parsed arguments are `matches`, as the text of a config file.
pub(crate) fn effective(command: &Command, matches: &ArgMatches) -> String {
    let mut out = String::new();
    let role = command.find_subcommand("config");
    for argument in role.into_iter().flat_map(Command::get_arguments) {
        let Some(long) = argument.get_long().filter(|long| *long != "help") else { continue };
        let Ok(Some(values)) = matches.try_get_raw(argument.get_id().as_str()) else { continue };
        let value = values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",");
        let is_number = value.parse::<u64>().is_ok();
        let value = match argument.get_action() {
            ArgAction::SetTrue => matches.get_flag(argument.get_id().as_str()).to_string(),
            _ if is_number => value,
            _ => toml::Value::String(value).to_string(),
        };
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "{long} = {value}");
    }
    out
}
