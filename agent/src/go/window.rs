//! A part of a file in memory, which moves to where it is asked to be.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::GoError;

/// Bytes that are asked for at once. What is longer is read in parts.
pub(crate) const ASK_BYTES_MAX: usize = 2048;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    size: usize,
}

impl<'a> Window<'a> {
    /// `size`: bytes that are read at once.
    pub(crate) fn new(file: &'a File, size: usize) -> Self {
        Self { file, start: 0, bytes: Vec::new(), size: size.max(ASK_BYTES_MAX) }
    }

    /// Between one and `size` bytes at `offset`, as many as are at hand.
    pub(crate) fn some(&mut self, offset: u64) -> Result<&[u8], GoError> {
        self.at_least(offset, 1)
    }

    /// The `count` bytes at `offset`.
    pub(crate) fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], GoError> {
        Ok(&self.at_least(offset, count)?[..count])
    }

    /// The number at `offset`, in the order of this machine.
    pub(crate) fn u32(&mut self, offset: u64) -> Result<u32, GoError> {
        let bytes = self.at_least(offset, 4)?.first_chunk();
        bytes.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(GoError::Broken("a number is cut"))
    }

    fn at_least(&mut self, offset: u64, count: usize) -> Result<&[u8], GoError> {
        if ASK_BYTES_MAX < count {
            return Err(GoError::Broken("too much at once"));
        }
        let within = |start: u64, length: usize| {
            let within = usize::try_from(offset.checked_sub(start)?).ok()?;
            (within.checked_add(count)? <= length).then_some(within)
        };
        if let Some(within) = within(self.start, self.bytes.len()) {
            return Ok(&self.bytes[within..]);
        }
        self.read(offset)?;
        if self.bytes.len() < count {
            return Err(GoError::Broken("it ends early"));
        }
        Ok(&self.bytes)
    }

    fn read(&mut self, offset: u64) -> Result<(), GoError> {
        self.start = offset;
        self.bytes.resize(self.size, 0);
        let mut length = 0;
        while length < self.size {
            match self.file.read_at(&mut self.bytes[length..], offset.saturating_add(length as u64)) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An offset that no file has.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => {
                    self.bytes.clear();
                    return Err(GoError::Io(error));
                }
            }
        }
        self.bytes.truncate(length);
        Ok(())
    }
}
