//! The node, router or administrator that a certificate is for.

use anyhow::{Context as _, bail};
use rustls_pki_types::ServerName;
use transport::Role;

/// Maximum number of hosts in one certificate.
const HOSTS_MAX: usize = 64;

/// The node, router or administrator that a certificate is for, and its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) role: Role,
    /// Host names and IP addresses. A node has at least one.
    pub(crate) hosts: Vec<String>,
}

impl Subject {
    /// Parses `ID=HOST[,HOST...]`.
    pub(crate) fn parse_node(text: &str) -> anyhow::Result<Self> {
        let (id, hosts) = text.split_once('=').context("use ID=HOST[,HOST...], such as 1=db1.example,10.0.0.1")?;
        let role = Role::from_uri(&format!("varve://node/{id}"));
        let role = role.map_err(|_unknown| anyhow::anyhow!("{id:?} is no number of a node: use 1, 2 and so on"))?;
        Ok(Self { role, hosts: parse_hosts(hosts)? })
    }

    /// Parses `NAME[=HOST,...]`.
    pub(crate) fn parse_router(text: &str) -> anyhow::Result<Self> {
        let (name, hosts) = match text.split_once('=') {
            None => (text, Vec::new()),
            Some((name, hosts)) => (name, parse_hosts(hosts)?),
        };
        Ok(Self { role: Role::router(name)?, hosts })
    }

    /// Parses the name of an administrator, whose certificate is for no host.
    pub(crate) fn parse_admin(text: &str) -> anyhow::Result<Self> {
        Ok(Self { role: Role::admin(text)?, hosts: Vec::new() })
    }

    fn name(&self) -> String {
        match &self.role {
            Role::Node(id) => format!("node-{id}"),
            Role::Router(name) => format!("router-{name}"),
            Role::Admin(name) => format!("admin-{name}"),
        }
    }

    /// Name of the file of the certificate.
    pub(crate) fn certificate_name(&self) -> String {
        format!("{}.pem", self.name())
    }

    /// Name of the file of the private key.
    pub(crate) fn key_name(&self) -> String {
        format!("{}.key", self.name())
    }
}

/// Parses host names and IP addresses, separated by commas. They are what a client checks a certificate against.
fn parse_hosts(text: &str) -> anyhow::Result<Vec<String>> {
    let hosts: Vec<String> = text.split(',').map(str::to_owned).collect();
    if hosts.len() > HOSTS_MAX {
        bail!("{} hosts are too many: at most {HOSTS_MAX} fit a certificate", hosts.len());
    }
    if let Some(wrong) = hosts.iter().find(|host| ServerName::try_from(host.as_str()).is_err()) {
        bail!("{wrong:?} is neither a host name nor an IP address; a port does not belong here");
    }
    Ok(hosts)
}
