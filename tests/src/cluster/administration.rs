//! `varve admin` against the nodes of a cluster, or of one varve.

use std::process::{Command, Output};

use serde_json::Value;

use crate::server::Varve;
use crate::shared::varve_binary;

/// Options with which `varve admin` reaches the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Administration {
    /// Options such as `--node-endpoint`.
    pub options: Vec<String>,
}

impl Administration {
    /// Administers a varve without TLS.
    #[must_use]
    pub fn of(varve: &Varve) -> Self {
        Self { options: vec!["--node-endpoint".to_owned(), format!("http://{}", varve.node)] }
    }

    /// Runs a command.
    #[must_use]
    pub fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(varve_binary());
        // The environment of the shell that runs the tests must not configure the command.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_")) {
            command.env_remove(name);
        }
        command.arg("admin").args(words).args(&self.options).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    #[must_use]
    pub fn text(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed, and returns its JSON.
    #[must_use]
    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[words, &["--json"]].concat())).unwrap()
    }

    /// Runs a command that must be refused, and returns the error.
    #[must_use]
    pub fn refusal(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?} was accepted");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Creates a tenant with these options.
    pub fn create_tenant(&self, tenant: &str, options: &[&str]) {
        let created = self.json(&[&["tenant", "create", tenant], options].concat());
        assert_eq!(created["changed"], true, "{created}");
    }

    /// Creates a token, and returns it with its hash.
    #[must_use]
    pub fn create_token(&self, tenant: &str, role: &str, options: &[&str]) -> (String, String) {
        let words = ["token", "create", "--tenant", tenant, "--role", role];
        let created = self.json(&[&words, options].concat());
        let text = |field: &str| created[field].as_str().unwrap().to_owned();
        (text("token"), text("hash"))
    }
}
