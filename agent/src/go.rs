//! Names of Go code, from the table that every Go program carries along, stripped or not: functions, files, lines, and the calls that
//! the compiler has inlined.
//!
//! ```text
//! .gopclntab   | header | function names | units | file names | values | functions |       the header says where each begins
//! units        | offset of a file name u32 | ...                                           a unit's files, one behind the other
//! values       | ( change of the value, varint | bytes of code that it holds for, varint ) ... 0 |
//! functions    | ( start u32 | offset of its record u32 ) ... | end u32 | record | ...     starts are from the start of the code
//! record       | start | name | ... | values: stack, file, line | unit | flags | more values ... | more data ... |
//! inline tree  | ( name | where in the code of its caller it was called | ... ) ...        data of a function, elsewhere in the file
//! ```
//!
//! `stack`, `file`, `line` and the index in the inline tree are tables of values by address: each begins at -1, and every pair adds a
//! change and says for how many bytes of code the sum holds. Where the code begins, and where the data of functions are, is not in the
//! table but in the program's module data, which has to be found without symbols ([`module`]).
//!
//! All is read by `pread` through small windows: the table of a large program has 30 MB. Invariant: whatever the bytes say, work and
//! memory are bounded, and the answer is names, nothing, or an error.
//!
//! Read in this order: `window` → `version` (what differs between versions of Go) → `header` → `module` → `table` → `values` →
//! `function` → `lookup` (from an address to its calls) → `programs` (the files that are open). `labels` is apart: of goroutines, read by BPF.

mod function;
mod header;
pub(crate) mod labels;
mod lookup;
mod module;
pub(crate) mod programs;
mod table;
#[cfg(test)]
pub(crate) mod test_program;
#[cfg(test)]
mod tests;
mod values;
mod version;
mod window;

use std::io;

pub(crate) use function::Function;
pub(crate) use lookup::Call;
pub(crate) use table::GoTable;
#[cfg(test)]
pub(crate) use table::NAME_BYTES_MAX;
pub(crate) use values::Budget;
pub(crate) use window::Window;

/// Why a table says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GoError {
    #[error("not a Go program of a known version")]
    Unknown,
    #[error("the program's module data cannot be found")]
    NoModule,
    #[error("the table is broken: {0}")]
    Broken(&'static str),
    #[error("the file cannot be read")]
    Io(#[source] io::Error),
}
