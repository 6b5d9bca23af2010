//! Buffered reads of a file at any offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::GoError;

/// Largest number of bytes that a caller may request at once. Longer data is read in parts.
pub(crate) const READ_BYTES_MAX: usize = 2048;

/// A file, and a buffer with one part of it.
#[derive(Debug)]
pub(crate) struct FileReader<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    size: usize,
}

impl<'a> FileReader<'a> {
    /// Creates a reader with a buffer of `size` bytes, but at least [`READ_BYTES_MAX`].
    pub(crate) fn new(file: &'a File, size: usize) -> Self {
        Self { file, start: 0, bytes: Vec::new(), size: size.max(READ_BYTES_MAX) }
    }

    /// Returns the buffered bytes at `offset`, at least one.
    pub(crate) fn some(&mut self, offset: u64) -> Result<&[u8], GoError> {
        self.at_least(offset, 1)
    }

    /// Returns `count` bytes at `offset`.
    pub(crate) fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], GoError> {
        Ok(&self.at_least(offset, count)?[..count])
    }

    /// Returns the number at `offset`, in the byte order of this machine.
    pub(crate) fn u32(&mut self, offset: u64) -> Result<u32, GoError> {
        let bytes = self.at_least(offset, 4)?.first_chunk();
        bytes.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(GoError::Broken("a number is truncated"))
    }

    fn at_least(&mut self, offset: u64, count: usize) -> Result<&[u8], GoError> {
        if READ_BYTES_MAX < count {
            return Err(GoError::Broken("a read is too long"));
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
                // The kernel refuses an offset that is larger than any file.
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
