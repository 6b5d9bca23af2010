//! The table of one program: its functions, by number and by address.

use std::fs::File;
use std::ops::Range;

use symbol_store::elf::GoLayout;

use super::GoError;
use super::function::{Function, RECORD_BYTES_MAX};
use super::header::Header;
use super::module;
use super::values::Values;
use super::window::{ASK_BYTES_MAX, Window};

/// Longer names are cut.
pub(crate) const NAME_BYTES_MAX: usize = 512;
/// Names that are longer still are not read to their end: the compiler writes whole structures into them.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Functions whose inline trees are looked at to find out where the data of functions are, and of how many.
const TREES_MAX: usize = 8;
const SAMPLES: u32 = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct GoTable {
    pub(super) file: File,
    pub(super) layout: GoLayout,
    pub(super) header: Header,
    /// What the starts of functions are relative to.
    text: u64,
    /// From the start of the first function to the end of the last one, relative to `text`.
    code: Range<u64>,
    /// The address that the data of functions are relative to; `None`: not known, and nothing is taken as inlined.
    pub(super) function_data: Option<u64>,
}

impl GoTable {
    /// The table of `file`; `None` if it is no Go program. Reads some headers of any file, and of a Go program its writable data or
    /// relocations once.
    ///
    /// # Errors
    /// It is a Go program that cannot be read.
    pub(crate) fn open(file: &File) -> Result<Option<Self>, GoError> {
        let Ok(Some(layout)) = GoLayout::read(file) else { return Ok(None) };
        let header = match Header::find(file, &layout) {
            // A stripped file of some other kind.
            Err(GoError::Unknown) if layout.table.is_none() => return Ok(None),
            found => found?,
        };
        let mut window = Window::new(file, ASK_BYTES_MAX);
        let first = window.u32(header.functions)?.into();
        let last = window.u32(header.functions + u64::from(header.functions_count) * 8)?.into();
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

    /// Addresses of Go code.
    pub(crate) fn code(&self) -> Range<u64> {
        self.text + self.code.start..self.text + self.code.end
    }

    pub(crate) fn functions_count(&self) -> u32 {
        self.header.functions_count
    }

    pub(crate) fn window(&self, size: usize) -> Window<'_> {
        Window::new(&self.file, size)
    }

    /// The function of a number below [`GoTable::functions_count`]. `index` and `records` are windows on the file that are best used for
    /// nothing else.
    pub(crate) fn function(
        &self,
        number: u32,
        index: &mut Window<'_>,
        records: &mut Window<'_>,
    ) -> Result<Function, GoError> {
        let bytes = index.bytes(self.header.functions + u64::from(number) * 8, 12)?.as_chunks::<4>().0;
        let numbers = bytes.first_chunk::<3>().ok_or(GoError::Broken("a function is cut"))?;
        let [start, record, end] = numbers.map(u32::from_ne_bytes);
        if !(self.code.contains(&start.into()) && start <= end && u64::from(end) <= self.code.end) {
            return Err(GoError::Broken("functions do not ascend"));
        }
        let at = self.header.functions.saturating_add(record.into());
        let (version, start, end) = (self.header.version, self.text + u64::from(start), self.text + u64::from(end));
        // The last record may be nearer to the end of the file than the longest one would be.
        let parsed = match records.bytes(at, RECORD_BYTES_MAX) {
            Ok(bytes) => Function::parse(bytes, version, start, end),
            Err(GoError::Broken(_)) => Function::parse(records.some(at)?, version, start, end),
            Err(error) => return Err(error),
        };
        parsed.ok_or(GoError::Broken("a function's record"))
    }

    /// The number of the function that holds `address`; `None`: it is no Go code.
    pub(super) fn number_of(&self, address: u64, index: &mut Window<'_>) -> Result<Option<u32>, GoError> {
        let Some(offset) = address.checked_sub(self.text).filter(|offset| self.code.contains(offset)) else {
            return Ok(None);
        };
        // The first one that starts behind it, and one less.
        let (mut low, mut high) = (0, self.header.functions_count);
        while low < high {
            let middle = low + (high - low) / 2;
            // The nearer, the more are in the window: it begins where the search may still go.
            let at = if (high - low) as usize * 8 <= ASK_BYTES_MAX { low } else { middle };
            let within = (middle - at) as usize * 8;
            let bytes = index.bytes(self.header.functions + u64::from(at) * 8, within + 4)?;
            let start = bytes.get(within..).and_then(<[u8]>::first_chunk);
            let start = start.map_or(0, |start| u32::from_ne_bytes(*start));
            if u64::from(start) <= offset { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1).map(Some).ok_or(GoError::Broken("functions do not ascend"))
    }

    /// One of a function's tables of values.
    pub(super) fn values<'w, 'f>(&self, table: u32, function: &Function, window: &'w mut Window<'f>) -> Values<'w, 'f> {
        Values::new(window, self.header.values.saturating_add(table.into()), self.header.quantum, function.start)
    }

    /// By how many bytes a function has moved the stack pointer, by address.
    pub(crate) fn stack<'w, 'f>(&self, function: &Function, window: &'w mut Window<'f>) -> Values<'w, 'f> {
        self.values(function.stack, function, window)
    }

    pub(crate) fn name(&self, function: &Function, window: &mut Window<'_>) -> Result<String, GoError> {
        self.name_at(function.name, window)
    }

    /// The name at an offset in the part of names. Type arguments are left out of it, as Go leaves them out of profiles: what the compiler
    /// writes there are shapes of memory, and long.
    pub(super) fn name_at(&self, name: u32, window: &mut Window<'_>) -> Result<String, GoError> {
        let mut name = self.text_at(self.header.names.saturating_add(name.into()), window)?;
        if let (Some(first), Some(last)) = (name.find('['), name.rfind(']'))
            && first < last
        {
            name.replace_range(first + 1..last, "...");
        }
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        Ok(name)
    }

    /// The path at an offset in the part of file names.
    pub(super) fn file_name_at(&self, name: u32, window: &mut Window<'_>) -> Result<String, GoError> {
        let mut path = self.text_at(self.header.file_names.saturating_add(name.into()), window)?;
        path.truncate(path.floor_char_boundary(NAME_BYTES_MAX));
        Ok(path)
    }

    /// The text at a file offset, up to the next zero byte.
    fn text_at(&self, at: u64, window: &mut Window<'_>) -> Result<String, GoError> {
        let mut text = Vec::new();
        while text.len() < TEXT_BYTES_MAX {
            let bytes = window.some(at.saturating_add(text.len() as u64))?;
            let end = bytes.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            if end.is_some() {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The first candidate with which the inline trees of some functions make sense.
    fn find_function_data(&self, candidates: &[u64]) -> Option<u64> {
        let (mut index, mut records, mut window) = (self.window(0), self.window(0), self.window(0));
        let step = (self.header.functions_count / SAMPLES).max(1) as usize;
        let numbers = (0..self.header.functions_count).step_by(step);
        let functions = numbers.filter_map(|number| self.function(number, &mut index, &mut records).ok());
        let inlining: Vec<_> = functions.filter(|function| function.inlined.is_some()).take(TREES_MAX).collect();
        let makes_sense = |candidate: &&u64| {
            !inlining.is_empty()
                && inlining.iter().all(|function| self.has_tree(**candidate, function, &mut window).unwrap_or_default())
        };
        candidates.iter().filter(|candidate| **candidate != 0).find(makes_sense).copied()
    }

    /// Whether the first call in the inline tree of a function has a name and a place in the function.
    fn has_tree(&self, function_data: u64, function: &Function, window: &mut Window<'_>) -> Option<bool> {
        let (_, tree) = function.inlined?;
        let call = self.inlined_call(function_data, tree, 0, window).ok()?;
        let names = self.header.names.saturating_add(call.name.into());
        // A name begins behind the end of another.
        let is_name = matches!(window.bytes(names.checked_sub(1)?, 2), Ok([0, first]) if *first != 0);
        Some(is_name && u64::from(call.parent) < function.end - function.start)
    }
}
