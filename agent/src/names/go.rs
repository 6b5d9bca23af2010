//! Names of Go code, from the table that every Go program contains, stripped or not: functions, files, lines, and
//! inlined calls.
//!
//! ```text
//! .gopclntab   | header | function names | units | file names | values | functions |
//!              the header has the offset of each part
//! units        | offset of a file name u32 | ...            the files of a unit follow one another
//! values       | ( change of the value, varint | bytes of code, varint ) ... | 0 |
//! functions    | ( start u32 | offset of its record u32 ) ... | end u32 | record | ...
//!              starts are relative to the start of the code
//! record       | start | name | ... | values: stack, file, line | unit | flags | more values ... | more data ... |
//! inline tree  | ( name | position of the call in its caller | ... ) ...   data of a function, elsewhere in the file
//! ```
//!
//! `stack`, `file`, `line` and the index in the inline tree are tables of values by address. The value of a table is -1
//! at first. Each pair adds a change to the value, and gives the number of bytes of code for which the sum holds. The
//! start of the code and the address of the functions' data are not in the table. They are in the program's module
//! data, which has to be found without symbols ([`module`]).
//!
//! The file is read by `pread` in small pieces, because the table of a large program has 30 MB.
//!
//! Invariant: for any content of the file, work and memory are bounded, and the result is names, nothing, or an error.
//!
//! Read in this order: `reader`, `version` (differences between versions of Go), `header`, `module`, `table`, `values`,
//! `function`, `lookup` (from an address to its calls), `programs` (the open files). `labels` is separate: it is about
//! goroutines, whose labels BPF reads.

mod function;
mod header;
pub(crate) mod labels;
mod lookup;
mod module;
pub(crate) mod programs;
mod reader;
mod table;
#[cfg(test)]
pub(crate) mod test_program;
#[cfg(test)]
mod tests;
mod values;
mod version;

use std::io;

pub(crate) use function::Function;
pub(crate) use reader::FileReader;
pub(crate) use table::GoTable;
pub(crate) use values::Budget;

/// Reason why the Go table of a file cannot be used.
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
