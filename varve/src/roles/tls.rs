//! TLS credentials of a node or router.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use transport::{Credentials, Role, TlsFiles};

use crate::command::TlsOptions;

/// Reads the files of the options; `None` if none of the options is given.
pub(crate) fn credentials(options: TlsOptions) -> anyhow::Result<Option<Arc<Credentials>>> {
    match options {
        TlsOptions { tls_ca: Some(ca), tls_cert: Some(cert), tls_key: Some(key) } => {
            Credentials::load(TlsFiles { ca, cert, key }).map(Some).context("TLS")
        }
        TlsOptions { tls_ca: None, tls_cert: None, tls_key: None } => Ok(None),
        TlsOptions { .. } => bail!("--tls-ca, --tls-cert and --tls-key are needed together: see `varve admin certs`"),
    }
}

/// Fails if the certificate of this process is not that of the node with this number.
pub(super) fn check_node(credentials: &Credentials, node_id: u64) -> anyhow::Result<()> {
    match credentials.role() {
        Role::Node(id) if *id == node_id => Ok(()),
        other => bail!("the certificate in --tls-cert is that of {other}, and --node-id is {node_id}: they must agree"),
    }
}
