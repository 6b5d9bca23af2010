//! Listeners of the servers. If a port is in use, the error names the process that listens on it, and the flag that
//! chooses another port. Addresses other than loopback need a token or `--insecure-listen`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail};
use router::auth::Auth;
use tokio::net::TcpListener;

use crate::command::{AccessOptions, RouterOptions};

/// Binds a listener. `flag` is the option that sets the address; an error message names this option.
pub(crate) async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let holder = holder_of(address.port()).map_or_else(String::new, |holder| format!(" by {holder}"));
            bail!("{address} is in use{holder}: stop that process, or use another address with {flag} ADDR:PORT")
        }
        Err(error) => Err(error).with_context(|| format!("listening on {address} ({flag})")),
    }
}

/// Returns the authentication for the ports of a router at these addresses. With `--require-token`, the tokens that the
/// meta group knows are enough for any address.
///
/// # Errors
/// An address is not loopback, and there is neither a token nor `--require-token` or `--insecure-listen`.
pub(crate) fn router_auth(access: &AccessOptions, options: &RouterOptions) -> anyhow::Result<Auth> {
    if options.require_token && access.token_file.is_none() {
        return Ok(Auth::required());
    }
    auth(access, &[options.http_listen, options.otlp_grpc_listen, options.otlp_http_listen])
}

/// Returns the authentication for servers at these addresses. Fails if an address is not loopback, and there is neither
/// a token nor `--insecure-listen`.
pub(crate) fn auth(access: &AccessOptions, listen: &[SocketAddr]) -> anyhow::Result<Auth> {
    if let Some(tokens) = &access.token_file {
        return Ok(Auth::tokens(tokens.clone()));
    }
    if access.insecure_listen {
        return Ok(Auth::open());
    }
    check_loopback(
        listen,
        "use a --token-file (one token per line, for example from `openssl rand -hex 32`), or on a router \
         --require-token with tokens of `varve admin token create`, or --insecure-listen if anyone who reaches it may \
         read and write",
    )?;
    Ok(Auth::loopback())
}

/// Fails if an address is not loopback. `advice` is the end of the error message.
pub(crate) fn check_loopback(listen: &[SocketAddr], advice: &str) -> anyhow::Result<()> {
    let loopback = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback(),
    };
    if let Some(address) = listen.iter().find(|address| !loopback(address)) {
        bail!("{address} can be reached from other hosts: {advice}");
    }
    Ok(())
}

/// Logs a warning if the port of a node without TLS can be reached from other hosts.
pub(crate) fn warn_of_plaintext(node_listen: SocketAddr) {
    if check_loopback(&[node_listen], "").is_err() {
        tracing::warn!(
            "{node_listen} (--node-listen) is not encrypted: use --tls-ca, --tls-cert and --tls-key where the traffic \
             crosses a network"
        );
    }
}

/// Returns the name and the pid of the process that listens on a TCP port; `None` if its sockets cannot be read.
fn holder_of(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .collect();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        // Folders of processes have numbers as names. `self` is a link to one of them.
        let pid = process.file_name();
        if !pid.to_string_lossy().starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let path = process.path();
        let Ok(descriptors) = fs::read_dir(path.join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else { continue };
            if inodes.iter().any(|inode| target.as_os_str() == format!("socket:[{inode}]").as_str()) {
                let name = fs::read_to_string(path.join("comm")).ok()?;
                return Some(format!("{} (pid {})", name.trim(), pid.to_string_lossy()));
            }
        }
    }
    None
}

/// Returns the inodes of listening sockets on a port, from the text of /proc/net/tcp.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local_port, 16).ok()? == port && *fields.get(3)? == LISTEN;
        is_it.then(|| (*fields.get(9).unwrap_or(&"")).to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_busy_port_names_its_holder_and_the_flag() {
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let error = bind(held.local_addr().unwrap(), "--http-listen").await.unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        assert!(error.contains("--http-listen"), "{error}");
    }

    #[test]
    fn beyond_loopback_a_token_or_the_insecure_flag_is_needed() {
        let all: SocketAddr = "0.0.0.0:4040".parse().unwrap();
        let here: SocketAddr = "[::1]:4040".parse().unwrap();
        let access = |insecure_listen| AccessOptions { token_file: None, insecure_listen };
        assert!(auth(&access(false), &[here, all]).unwrap_err().to_string().contains("--insecure-listen"));
        assert!(auth(&access(false), &[here]).is_ok());
        assert!(auth(&access(true), &[all]).is_ok());
        let router = |require_token| RouterOptions {
            http_listen: all,
            otlp_grpc_listen: here,
            otlp_http_listen: here,
            require_token,
        };
        assert!(router_auth(&access(false), &router(false)).unwrap_err().to_string().contains("--require-token"));
        assert!(router_auth(&access(false), &router(true)).is_ok());
    }
}
