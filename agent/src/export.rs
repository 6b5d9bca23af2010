//! The way out: requests are built ([`request`], [`dictionary`]), wait in a bounded queue ([`queue`]) and are sent ([`client`])
//! until they are acknowledged ([`sender`]), as a receiver asks for it ([`proto::retry_info`]); while it is away they wait on
//! disk ([`spool`]).

pub(crate) mod client;
pub(crate) mod dictionary;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod sender;
pub(crate) mod spool;

use std::time::Duration;

use client::IdempotencyKey;
use request::EncodedRequest;

/// How long one try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// A request on its way, with the key that it keeps until it has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) key: IdempotencyKey,
    pub(crate) request: EncodedRequest,
}
