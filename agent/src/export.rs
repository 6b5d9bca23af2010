//! The way out: requests are built ([`request`], [`dictionary`]), wait in a bounded queue ([`queue`]) and are sent until they are
//! acknowledged ([`sender`]), as a receiver asks for it ([`proto::retry_info`]).

pub(crate) mod dictionary;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod sender;
