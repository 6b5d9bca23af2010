//! A table of values by address: see the format in [`super`].

use super::GoError;
use super::window::Window;

/// Steps through tables of values that are still allowed: bounds the work that bytes can ask for.
#[derive(Debug)]
pub(crate) struct Budget(pub(crate) u32);

impl Budget {
    pub(super) fn spend(&mut self) -> Result<(), GoError> {
        self.0 = self.0.checked_sub(1).ok_or(GoError::Broken("a table of values does not end"))?;
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Values<'w, 'f> {
    window: &'w mut Window<'f>,
    at: u64,
    quantum: u64,
    value: i32,
    /// Where the value ceases to hold.
    address: u64,
    is_first: bool,
}

impl<'w, 'f> Values<'w, 'f> {
    /// Those at file offset `at`, of code from `start` on.
    pub(super) fn new(window: &'w mut Window<'f>, at: u64, quantum: u8, start: u64) -> Self {
        Self { window, at, quantum: quantum.into(), value: -1, address: start, is_first: true }
    }

    /// The next value, and the address that it holds up to; `None` at the end.
    pub(crate) fn next(&mut self, budget: &mut Budget) -> Result<Option<(i32, u64)>, GoError> {
        budget.spend()?;
        let change = self.varint()?;
        if change == 0 && !self.is_first {
            return Ok(None);
        }
        self.is_first = false;
        // The lowest bit is the sign.
        let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
        self.value = self.value.wrapping_add(change);
        let step = u64::from(self.varint()?) * self.quantum;
        self.address = self.address.checked_add(step).ok_or(GoError::Broken("code ends nowhere"))?;
        Ok(Some((self.value, self.address)))
    }

    fn varint(&mut self) -> Result<u32, GoError> {
        let mut number = 0;
        for shift in (0..32).step_by(7) {
            let byte = self.window.some(self.at)?.first().copied().unwrap_or_default();
            self.at = self.at.saturating_add(1);
            number |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(GoError::Broken("a number does not end"))
    }
}
