//! Tests of the command line, together with the config file.

use super::*;

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn every_option_of_a_role_has_an_environment_variable_of_its_name() {
    for role in ["up", "node", "router", "agent"] {
        let command = CommandLine::command();
        let role = command.find_subcommand(role).unwrap();
        for argument in role.get_arguments().filter(|argument| argument.get_id() != "help") {
            let name = argument.get_long().unwrap().replace('-', "_").to_uppercase();
            let variable = argument.get_env().unwrap().to_str().unwrap();
            // The agent's endpoint has OpenTelemetry's variable, which every OTLP exporter reads.
            let wanted =
                if name == "ENDPOINT" { "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned() } else { format!("VARVE_{name}") };
            assert_eq!(variable, wanted);
        }
    }
}

#[test]
fn effective_options_are_read_back_the_same() {
    let read = |text: &str| {
        let file = ConfigFile::parse("test", text).unwrap();
        let matches = file.into_defaults(CommandLine::command()).unwrap().get_matches_from(["varve", "config"]);
        config_file::effective(&CommandLine::command(), matches.subcommand().unwrap().1)
    };
    let changed = "http-listen = \"127.0.0.1:1\"\nfrequency-hz = 97\nshards = 4\nno-agent = true\nretention = \"1h\"\n";
    let effective = read(changed);
    for line in changed.lines() {
        assert!(effective.lines().any(|printed| printed == line), "{line} is not in:\n{effective}");
    }
    assert_eq!(read(&effective), effective);
}

#[test]
fn an_endpoint_in_a_file_is_that_of_the_agent_and_not_of_commands() {
    let endpoint = |arguments: &[&str]| {
        let file = ConfigFile::parse("test", "endpoint = \"http://collector:4317\"").unwrap();
        let command = file.into_defaults(CommandLine::command()).unwrap();
        match CommandLine::from_arg_matches(&command.get_matches_from(arguments)).unwrap().command {
            Commands::Agent(options) => options.endpoint,
            Commands::Query(options) => options.server.endpoint,
            _ => panic!(),
        }
    };
    assert_eq!(endpoint(&["varve", "agent"]), "http://collector:4317");
    assert_eq!(endpoint(&["varve", "query", "up"]), "http://127.0.0.1:4040");
}

#[test]
fn a_flag_wins_over_the_file() {
    let file = ConfigFile::parse("test", "frequency-hz = 97").unwrap();
    let command = file.into_defaults(CommandLine::command()).unwrap();
    let matches = command.get_matches_from(["varve", "up", "--frequency-hz", "5"]);
    let Commands::Up(options) = CommandLine::from_arg_matches(&matches).unwrap().command else { panic!() };
    assert_eq!(options.sampling.frequency_hz, 5);
}

#[test]
fn a_recording_uses_the_values_of_the_file() {
    let file = ConfigFile::parse("test", "frequency-hz = 97").unwrap();
    let command = file.into_defaults(CommandLine::command()).unwrap();
    let matches = command.get_matches_from(["varve", "agent", "record", "-o", "x.folded"]);
    let Commands::Agent(options) = CommandLine::from_arg_matches(&matches).unwrap().command else { panic!() };
    let Some(AgentCommands::Record(options)) = options.command else { panic!() };
    assert_eq!(options.sampling.frequency_hz, 97);
}

#[test]
fn an_error_names_an_unknown_key_or_a_wrong_value() {
    let error = |text: &str| {
        let file = ConfigFile::parse("varve.toml", text);
        file.and_then(|file| file.into_defaults(CommandLine::command())).unwrap_err().to_string()
    };
    assert!(error("http_listen = \"x\"").contains("http_listen"), "{}", error("http_listen = \"x\""));
    assert!(error("frequency-hz = [1]").contains("frequency-hz"));
    assert!(error("duration = \"1m\"").contains("duration"), "a recording's, and no role's");
    assert!(error("frequency-hz = ").contains("varve.toml"));
}
