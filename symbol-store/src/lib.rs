//! Names for native addresses: lookup of functions, files, lines and inlined calls by build ID and address.
//!
//! # Promise
//! Every name comes from a file with the requested build ID. Each program or debug file is parsed once, in a child
//! process with limits on memory, time and output ([`convert`]). The result is one immutable, memory-mapped symbol
//! table. A file that breaks the child never harms the parent, and every address without a name has a [`Reason`].
//! # Limits
//! Only a configured `bucket` uses the network. The store is not async: [`SymbolStore::symbolize`] blocks, for a
//! limited time. An uploaded file gives names only to the tenant that has uploaded it.
//! # Read in this order
//! [`convert`] (from a file to a symbol table) → `table` (format on disk, lookup) → `host` (search for files by build
//! ID) → `store` (tables on disk and in memory) → `bucket` (tables that several stores share) → [`limits`].
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use symbol_store::{Address, Config, ObjectKey, SymbolStore, convert::Converter, limits::Limits};
//!
//! # fn main() -> std::io::Result<()> {
//! let store = SymbolStore::open(Config {
//!     directory: "varve-data/symbols".into(),
//!     converter: Converter { program: "/proc/self/exe".into(), arguments: vec!["convert-debug-file".into()] },
//!     host_files: true,
//!     debug_directory: "/usr/lib/debug".into(),
//!     bucket: None,
//!     limits: Limits::DEFAULT,
//! })?;
//! let build_id = proto::BuildId::parse("gnu:4f53abaf945c95ab11cd89a2bb1d6a9d");
//! let tenant = proto::TenantId::default_tenant();
//! let object = ObjectKey { tenant: &tenant, build_id: build_id.as_ref(), file: "/usr/lib/libc.so.6" };
//! for answer in store.symbolize(&object, &[Address::Virtual(0x28490)], Duration::from_secs(1)) {
//!     match answer {
//!         Ok(frames) => frames.iter().for_each(|frame| println!("{}:{}", frame.function, frame.line)),
//!         Err(nameless) => println!("{}: {nameless}", nameless.reason.code()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod convert;
pub mod limits;

mod bucket;
mod frame;
mod host;
mod reason;
mod source;
mod store;
mod table;

pub use frame::{Frame, Nameless, ObjectKey};
pub use proto::Address;
pub use reason::{Reason, Unusable};
pub use source::Source;
pub use store::{AddError, Added, Config, SymbolStore, Upload};
