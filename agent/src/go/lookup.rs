//! From an address to the functions that it lies in: the one whose code it is, and those that were inlined there.

use super::GoError;
use super::function::Function;
use super::table::GoTable;
use super::values::Budget;
use super::window::Window;

/// Calls inlined into each other. The compiler stops at about forty.
const DEPTH_MAX: usize = 64;
/// Steps through tables of values for one address. The longest functions known here have 50,000 in a table.
const STEPS_MAX: u32 = 1 << 18;
/// A unit's file that has no name.
const NO_FILE: u32 = u32::MAX;

/// A function that was called, and where it was when it called the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    /// Where the function begins; 0 before Go 1.20.
    pub(crate) start_line: u32,
}

/// An entry of an inline tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedCall {
    pub(super) name: u32,
    /// An instruction with the call's line, from the start of the function.
    pub(super) parent: u32,
    start_line: u32,
}

impl GoTable {
    /// The calls at an address, innermost first; none if it is no Go code.
    ///
    /// # Errors
    /// The table is broken there, or cannot be read.
    pub(crate) fn lookup(&self, address: u64) -> Result<Vec<Call>, GoError> {
        let (mut window, mut records) = (self.window(0), self.window(0));
        let Some(number) = self.number_of(address, &mut window)? else { return Ok(Vec::new()) };
        let function = self.function(number, &mut window, &mut records)?;
        if !(function.start..function.end).contains(&address) {
            return Err(GoError::Broken("functions do not ascend"));
        }
        let mut budget = Budget(STEPS_MAX);
        let (mut calls, mut address) = (Vec::new(), address);
        while calls.len() < DEPTH_MAX {
            let inlined = self.inlined_at(&function, address, &mut window, &mut budget)?;
            let (name, start_line) =
                inlined.map_or((function.name, function.start_line), |call| (call.name, call.start_line));
            let file = self.file_at(&function, address, &mut window, &mut budget)?;
            let line = self.value_at(function.lines, &function, address, &mut window, &mut budget)?;
            let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or_default();
            let name = self.name_at(name, &mut window)?;
            calls.push(Call { function: name, file, line, start_line });
            let Some(inlined) = inlined else { return Ok(calls) };
            address = function.start.saturating_add(inlined.parent.into());
        }
        Err(GoError::Broken("inlined without end"))
    }

    fn inlined_at(
        &self,
        function: &Function,
        address: u64,
        window: &mut Window<'_>,
        budget: &mut Budget,
    ) -> Result<Option<InlinedCall>, GoError> {
        let (Some((table, tree)), Some(function_data)) = (function.inlined, self.function_data) else {
            return Ok(None);
        };
        let index = self.value_at(table, function, address, window, budget)?;
        let Some(index) = index.and_then(|index| u32::try_from(index).ok()) else { return Ok(None) };
        self.inlined_call(function_data, tree, index, window).map(Some)
    }

    /// The call of number `index` in the inline tree at `tree` in the data of functions.
    pub(super) fn inlined_call(
        &self,
        function_data: u64,
        tree: u32,
        index: u32,
        window: &mut Window<'_>,
    ) -> Result<InlinedCall, GoError> {
        let layout = self.header.version.inlined;
        let within = u64::from(tree) + u64::from(index) * layout.bytes as u64;
        let at = function_data.checked_add(within).and_then(|address| self.layout.file_offset(address));
        let bytes = window.bytes(at.ok_or(GoError::Broken("an inline tree is nowhere"))?, layout.bytes)?;
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
        window: &mut Window<'_>,
        budget: &mut Budget,
    ) -> Result<String, GoError> {
        let number = self.value_at(function.files, function, address, window, budget)?;
        let Some(number) = number.and_then(|number| u32::try_from(number).ok()) else { return Ok(String::new()) };
        let at = (u64::from(function.unit) + u64::from(number)) * 4;
        match window.u32(self.header.units.saturating_add(at))? {
            NO_FILE => Ok(String::new()),
            name => self.file_name_at(name, window),
        }
    }

    /// What a table says of an address; `None` if it ends before.
    fn value_at(
        &self,
        table: u32,
        function: &Function,
        address: u64,
        window: &mut Window<'_>,
        budget: &mut Budget,
    ) -> Result<Option<i32>, GoError> {
        if table == 0 {
            return Ok(None);
        }
        let mut values = self.values(table, function, window);
        while let Some((value, end)) = values.next(budget)? {
            if address < end {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}
