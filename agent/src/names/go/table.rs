//! The Go table of one program: its functions, by number and by address.

use std::fs::File;
use std::ops::Range;

use host_files::elf::GoLayout;

use super::GoError;
use super::function::{Function, RECORD_BYTES_MAX};
use super::header::Header;
use super::module;
use super::reader::{FileReader, READ_BYTES_MAX};
use super::values::Values;
use crate::names::location::NAME_BYTES_MAX;

/// Largest number of bytes that are read from a name. The compiler writes whole types into names, so some are very
/// long.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Largest number of inline trees that are checked to find the base address of the data of functions.
const TREES_MAX: usize = 8;
/// Approximate number of functions among which inline trees are searched.
const SAMPLES: u32 = 1024;

/// The Go table of a program.
#[derive(Debug)]
pub(crate) struct GoTable {
    pub(super) file: File,
    pub(super) layout: GoLayout,
    pub(super) header: Header,
    /// Address that the starts of functions are relative to.
    text: u64,
    /// Range of the code of all functions, relative to `text`.
    code: Range<u64>,
    /// Base address of the data of functions; `None` if it is not known, so that inlined calls are not found.
    pub(super) function_data: Option<u64>,
}

impl GoTable {
    /// Opens the table of `file`. Returns `None` if the file is not a Go program. Reads some headers of any file, and
    /// the writable data or relocations of a Go program.
    ///
    /// # Errors
    /// The file is a Go program that cannot be read.
    pub(crate) fn open(file: &File) -> Result<Option<Self>, GoError> {
        let Ok(Some(layout)) = GoLayout::read(file) else { return Ok(None) };
        let header = match Header::find(file, &layout) {
            // The file is stripped, and no Go program.
            Err(GoError::Unknown) if layout.table.is_none() => return Ok(None),
            found => found?,
        };
        let mut reader = FileReader::new(file, READ_BYTES_MAX);
        let first = reader.u32(header.functions)?.into();
        let last = reader.u32(header.functions + u64::from(header.functions_count) * 8)?.into();
        let (text, candidates) = match module::find(file, &layout, header.address, first..last) {
            Ok(module) => (module.text, module.function_data),
            Err(GoError::NoModule) if header.text != 0 => (header.text, Vec::new()),
            Err(error) => return Err(error),
        };
        let is_code = first < last && text.checked_add(last).is_some();
        is_code.then_some(()).ok_or(GoError::Broken("code ends before it begins"))?;
        let file = file.try_clone().map_err(GoError::Io)?;
        let mut table = Self { file, layout, header, text, code: first..last, function_data: None };
        table.function_data = table.find_function_data(&candidates);
        Ok(Some(table))
    }

    /// Returns the addresses of Go code.
    pub(crate) fn code(&self) -> Range<u64> {
        self.text + self.code.start..self.text + self.code.end
    }

    pub(crate) fn functions_count(&self) -> u32 {
        self.header.functions_count
    }

    pub(crate) fn reader(&self, size: usize) -> FileReader<'_> {
        FileReader::new(&self.file, size)
    }

    /// Returns the function with `number`, which is below [`GoTable::functions_count`]. The readers `index` and
    /// `records` should be used for nothing else, so that their buffers stay useful.
    pub(crate) fn function(
        &self,
        number: u32,
        index: &mut FileReader<'_>,
        records: &mut FileReader<'_>,
    ) -> Result<Function, GoError> {
        let bytes = index.bytes(self.header.functions + u64::from(number) * 8, 12)?.as_chunks::<4>().0;
        let numbers = bytes.first_chunk::<3>().ok_or(GoError::Broken("a function is truncated"))?;
        let [start, record, end] = numbers.map(u32::from_ne_bytes);
        if !(self.code.contains(&start.into()) && start <= end && u64::from(end) <= self.code.end) {
            return Err(GoError::Broken("functions do not ascend"));
        }
        let at = self.header.functions.saturating_add(record.into());
        let version = self.header.version;
        let start = self.text + u64::from(start);
        let end = self.text + u64::from(end);
        // The last record may be closer to the end of the file than the longest possible record.
        let parsed = match records.bytes(at, RECORD_BYTES_MAX) {
            Ok(bytes) => Function::parse(bytes, version, start, end),
            Err(GoError::Broken(_)) => Function::parse(records.some(at)?, version, start, end),
            Err(error) => return Err(error),
        };
        parsed.ok_or(GoError::Broken("the record of a function is malformed"))
    }

    /// Returns the number of the function that holds `address`; `None` if the address is not in Go code.
    pub(super) fn number_of(&self, address: u64, index: &mut FileReader<'_>) -> Result<Option<u32>, GoError> {
        let Some(offset) = address.checked_sub(self.text).filter(|offset| self.code.contains(offset)) else {
            return Ok(None);
        };
        // The search finds the first function that starts after the address. The result is the function before it.
        let mut low = 0;
        let mut high = self.header.functions_count;
        while low < high {
            let middle = low + (high - low) / 2;
            // Once the rest of the search fits one read, the buffer begins at the start of that rest.
            let at = if (high - low) as usize * 8 <= READ_BYTES_MAX { low } else { middle };
            let within = (middle - at) as usize * 8;
            let bytes = index.bytes(self.header.functions + u64::from(at) * 8, within + 4)?;
            let start = bytes.get(within..).and_then(<[u8]>::first_chunk);
            let start = start.map_or(0, |start| u32::from_ne_bytes(*start));
            if u64::from(start) <= offset { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1).map(Some).ok_or(GoError::Broken("functions do not ascend"))
    }

    /// Returns one of a function's tables of values.
    pub(super) fn values<'w, 'f>(
        &self,
        table: u32,
        function: &Function,
        reader: &'w mut FileReader<'f>,
    ) -> Values<'w, 'f> {
        Values::new(reader, self.header.values.saturating_add(table.into()), self.header.quantum, function.start)
    }

    /// Returns a table of values: at each address, the number of bytes by which the function has moved the stack
    /// pointer.
    pub(crate) fn stack<'w, 'f>(&self, function: &Function, reader: &'w mut FileReader<'f>) -> Values<'w, 'f> {
        self.values(function.stack, function, reader)
    }

    pub(crate) fn name(&self, function: &Function, reader: &mut FileReader<'_>) -> Result<String, GoError> {
        self.name_at(function.name, reader)
    }

    /// Returns the function name at the offset `name` among the function names, without its type arguments. Go omits
    /// type arguments from profiles, too, because they are long descriptions of memory shapes.
    pub(super) fn name_at(&self, name: u32, reader: &mut FileReader<'_>) -> Result<String, GoError> {
        let mut name = self.text_at(self.header.names.saturating_add(name.into()), reader)?;
        if let (Some(first), Some(last)) = (name.find('['), name.rfind(']'))
            && first < last
        {
            name.replace_range(first + 1..last, "...");
        }
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        Ok(name)
    }

    /// Returns the path at the offset `name` among the file names.
    pub(super) fn file_name_at(&self, name: u32, reader: &mut FileReader<'_>) -> Result<String, GoError> {
        let mut path = self.text_at(self.header.file_names.saturating_add(name.into()), reader)?;
        path.truncate(path.floor_char_boundary(NAME_BYTES_MAX));
        Ok(path)
    }

    /// Returns the text at a file offset, up to the next zero byte.
    fn text_at(&self, at: u64, reader: &mut FileReader<'_>) -> Result<String, GoError> {
        let mut text = Vec::new();
        while text.len() < TEXT_BYTES_MAX {
            let bytes = reader.some(at.saturating_add(text.len() as u64))?;
            let end = bytes.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if end.is_some() {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the first candidate with which the inline trees of some functions are plausible.
    fn find_function_data(&self, candidates: &[u64]) -> Option<u64> {
        let mut index = self.reader(0);
        let mut records = self.reader(0);
        let mut reader = self.reader(0);
        let step = (self.header.functions_count / SAMPLES).max(1) as usize;
        let numbers = (0..self.header.functions_count).step_by(step);
        let functions = numbers.filter_map(|number| self.function(number, &mut index, &mut records).ok());
        let inlining: Vec<_> = functions.filter(|function| function.inlined.is_some()).take(TREES_MAX).collect();
        let is_plausible = |candidate: &&u64| {
            !inlining.is_empty()
                && inlining.iter().all(|function| self.has_tree(**candidate, function, &mut reader).unwrap_or_default())
        };
        candidates.iter().filter(|candidate| **candidate != 0).find(is_plausible).copied()
    }

    /// Checks that the first call in the inline tree of a function has a name and lies in the function.
    fn has_tree(&self, function_data: u64, function: &Function, reader: &mut FileReader<'_>) -> Option<bool> {
        let (_, tree) = function.inlined?;
        let call = self.inlined_call(function_data, tree, 0, reader).ok()?;
        let names = self.header.names.saturating_add(call.name.into());
        // A name follows the terminating zero of another.
        let is_name = matches!(reader.bytes(names.checked_sub(1)?, 2), Ok([0, first]) if *first != 0);
        Some(is_name && u64::from(call.parent) < function.end - function.start)
    }
}
