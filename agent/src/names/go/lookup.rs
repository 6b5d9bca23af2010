//! Lookup of the calls at an address: the function that holds the address, and the calls inlined there.

use super::GoError;
use super::function::Function;
use super::reader::FileReader;
use super::table::GoTable;
use super::values::Budget;
use crate::names::location::Call;

/// Largest number of calls that are looked up for one address. The compiler nests about forty inlined calls at most.
const DEPTH_MAX: usize = 64;
/// Largest number of steps through tables of values for one address. The tables of the longest known functions have
/// 50,000 steps.
const STEPS_MAX: u32 = 1 << 18;
/// Offset that stands for a missing file name.
const NO_FILE: u32 = u32::MAX;

/// An entry of an inline tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedCall {
    pub(super) name: u32,
    /// Offset, from the start of the function, of an instruction that belongs to the line of the call.
    pub(super) parent: u32,
    start_line: u32,
}

impl GoTable {
    /// Returns the calls at an address, innermost first; empty if the address is not in Go code.
    ///
    /// # Errors
    /// The table is malformed for this address, or cannot be read.
    pub(crate) fn lookup(&self, address: u64) -> Result<Vec<Call>, GoError> {
        let mut reader = self.reader(0);
        let mut records = self.reader(0);
        let Some(number) = self.number_of(address, &mut reader)? else { return Ok(Vec::new()) };
        let function = self.function(number, &mut reader, &mut records)?;
        if !(function.start..function.end).contains(&address) {
            return Err(GoError::Broken("functions do not ascend"));
        }
        let mut budget = Budget(STEPS_MAX);
        let mut calls = Vec::new();
        let mut address = address;
        while calls.len() < DEPTH_MAX {
            let inlined = self.inlined_at(&function, address, &mut reader, &mut budget)?;
            let (name, start_line) =
                inlined.map_or((function.name, function.start_line), |call| (call.name, call.start_line));
            let file = self.file_at(&function, address, &mut reader, &mut budget)?;
            let line = self.value_at(function.lines, &function, address, &mut reader, &mut budget)?;
            let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or_default();
            let name = self.name_at(name, &mut reader)?;
            calls.push(Call { function: name, file, line, start_line });
            let Some(inlined) = inlined else { return Ok(calls) };
            address = function.start.saturating_add(inlined.parent.into());
        }
        Err(GoError::Broken("inlined calls do not end"))
    }

    fn inlined_at(
        &self,
        function: &Function,
        address: u64,
        reader: &mut FileReader<'_>,
        budget: &mut Budget,
    ) -> Result<Option<InlinedCall>, GoError> {
        let (Some((table, tree)), Some(function_data)) = (function.inlined, self.function_data) else {
            return Ok(None);
        };
        let index = self.value_at(table, function, address, reader, budget)?;
        let Some(index) = index.and_then(|index| u32::try_from(index).ok()) else { return Ok(None) };
        self.inlined_call(function_data, tree, index, reader).map(Some)
    }

    /// Returns the inlined call with this index in an inline tree. The tree is at offset `tree` from `function_data`,
    /// the base address of the data of functions.
    pub(super) fn inlined_call(
        &self,
        function_data: u64,
        tree: u32,
        index: u32,
        reader: &mut FileReader<'_>,
    ) -> Result<InlinedCall, GoError> {
        let layout = self.header.version.inlined;
        let within = u64::from(tree) + u64::from(index) * layout.bytes as u64;
        let at = function_data.checked_add(within).and_then(|address| self.layout.file_offset(address));
        let bytes = reader.bytes(at.ok_or(GoError::Broken("an inline tree is outside of the file"))?, layout.bytes)?;
        let field = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let start_line = layout.start_line.map_or(0, field);
        Ok(InlinedCall { name: field(layout.name), parent: field(layout.parent), start_line })
    }

    fn file_at(
        &self,
        function: &Function,
        address: u64,
        reader: &mut FileReader<'_>,
        budget: &mut Budget,
    ) -> Result<String, GoError> {
        let number = self.value_at(function.files, function, address, reader, budget)?;
        let Some(number) = number.and_then(|number| u32::try_from(number).ok()) else { return Ok(String::new()) };
        let at = (u64::from(function.unit) + u64::from(number)) * 4;
        match reader.u32(self.header.units.saturating_add(at))? {
            NO_FILE => Ok(String::new()),
            name => self.file_name_at(name, reader),
        }
    }

    /// Returns the value of a table at an address; `None` if the table ends before the address.
    fn value_at(
        &self,
        table: u32,
        function: &Function,
        address: u64,
        reader: &mut FileReader<'_>,
        budget: &mut Budget,
    ) -> Result<Option<i32>, GoError> {
        if table == 0 {
            return Ok(None);
        }
        let mut values = self.values(table, function, reader);
        while let Some((value, end)) = values.next(budget)? {
            if address < end {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}
