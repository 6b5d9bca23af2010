//! Names for native addresses: lookup of functions, files, lines and inlined calls by build ID and address.
//!
//! # Promise
//! Every name comes from a file with the requested build ID. Each program or debug file is parsed once, in a child
//! process with limits on memory, time and output ([`convert`]). The result is one immutable, memory-mapped symbol
//! table. A file that breaks the child never harms the parent, and every address without a name has a [`Reason`].
//! # Limits
//! The store uses no network, knows no tenants, and is not async: [`SymbolStore::symbolize`] blocks.
//! # Read in this order
//! [`convert`] (from a file to a symbol table) → `table` (format on disk, lookup) → `host` (search for files by build
//! ID) → `store` (tables on disk and in memory, uploads, concurrency) → [`limits`].
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
//!     limits: Limits::DEFAULT,
//! })?;
//! let build_id = proto::BuildId::parse("gnu:4f53abaf945c95ab11cd89a2bb1d6a9d");
//! let object = ObjectKey { build_id: build_id.as_ref(), file: "/usr/lib/libc.so.6" };
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
