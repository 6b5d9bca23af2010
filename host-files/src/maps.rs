//! `/proc/<pid>/maps`, line by line:
//!
//! `7f1a2c000000-7f1a2c195000 r-xp 00026000 08:02 173521    /usr/lib/libc.so.6 (deleted)`
//!
//! | start-end | permissions | offset | device | inode | path |
//!
//! Numbers are hexadecimal, except the inode. The path may be missing, and may contain spaces. The kernel escapes a
//! newline in it as `\012`, and appends ` (deleted)` if the file has no name any more.
//!
//! Invariant: an invalid line is passed on as `None`, and no part of it is used. At most [`LINE_BYTES_MAX`] bytes of a
//! line are in memory at one time.

use std::io::{self, BufRead, Read as _};

/// Length of the longest valid line, in bytes. A path has up to 4,096 bytes, and each of them may be escaped as four
/// bytes.
pub const LINE_BYTES_MAX: usize = 4 * 4096 + 128;

/// A line of `/proc/<pid>/maps`, which describes one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsLine<'a> {
    /// First address of the mapping.
    pub start: u64,
    /// End: the first address after the mapping.
    pub end: u64,
    /// True if the mapping is executable.
    pub executable: bool,
    /// Offset in the mapped file at which the mapping begins, in bytes.
    pub offset: u64,
    /// Major and minor number of the device that the file's file system is on.
    pub device: (u32, u32),
    /// Inode number of the mapped file; 0 if there is no file.
    pub inode: u64,
    /// Path of the mapped file as the process sees it, without ` (deleted)`. Empty for anonymous memory. A special
    /// mapping has a name in brackets instead, such as `[vdso]`.
    pub path: &'a [u8],
}

impl<'a> MapsLine<'a> {
    /// Parses a line that ends with a newline. `None` if the line is invalid.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n")?;
        // All fields but the path are ASCII.
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut field = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
        let (start, end) = field()?.split_once('-')?;
        let start = hex(start)?;
        let end = hex(end)?;
        let permissions = field()?.as_bytes();
        let offset = hex(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let device = (u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
        let inode = decimal(field()?)?;
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let executable = permissions.get(2)? == &b'x';
        (permissions.len() == 4 && start < end).then_some(Self { start, end, executable, offset, device, inode, path })
    }
}

/// Parses the lines in the first `bytes_max` bytes of `lines`. Calls `take` for each line, with `None` for an invalid
/// one.
///
/// # Errors
///
/// The error of read(2). If the process ends meanwhile, this error may follow after some lines were already passed to
/// `take`.
pub fn each_line(
    mut lines: impl BufRead,
    bytes_max: u64,
    mut take: impl FnMut(Option<MapsLine<'_>>),
) -> io::Result<()> {
    let mut line = Vec::with_capacity(256);
    let mut bytes = 0;
    while bytes < bytes_max {
        line.clear();
        let read = (&mut lines).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        take(MapsLine::parse(&line));
    }
    Ok(())
}

fn hex(digits: &str) -> Option<u64> {
    // `from_str_radix` also accepts a sign.
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn decimal(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_line_is_read() {
        let line = b"00400000-00452000 r-xp 00001000 fd:1b 173521      /usr/bin/a b (deleted)\n";
        let expected = MapsLine {
            start: 0x40_0000,
            end: 0x45_2000,
            executable: true,
            offset: 0x1000,
            device: (0xfd, 0x1b),
            inode: 173_521,
            path: b"/usr/bin/a b",
        };
        assert_eq!(MapsLine::parse(line), Some(expected));
        let anonymous = MapsLine::parse(b"7ffd0000-7ffd2000 rw-p 00000000 00:00 0 \n").unwrap();
        assert_eq!((anonymous.executable, anonymous.path), (false, &b""[..]));
    }

    #[test]
    fn hostile_lines_are_invalid() {
        for line in [
            "",
            "garbage",
            "1000-2000",
            "-1000-2000 r-xp 0 0:0 0 ",
            "+1000-2000 r-xp 0 0:0 0 ",
            "2000-1000 r-xp 0 0:0 0 ",
            "1000-1000 r-xp 0 0:0 0 ",
            "1000-2000 x 0 0:0 0 ",
            "1000-2000 r-xpx 0 0:0 0 ",
            "1000-2000 r-xp zz 0:0 0 ",
            "1000-2000 r-xp 0 00 0 ",
            "1000-2000 r-xp 0 100000000:0 0 ",
            "1000-2000 r-xp 0 0:0 -1 ",
            "11112222333344445-2 r-xp 0 0:0 0 ",
        ] {
            assert_eq!(MapsLine::parse(format!("{line}\n").as_bytes()), None, "{line}");
        }
        assert_eq!(MapsLine::parse(b"1000-2000 r-xp 0 0:0 0 /cut"), None);
    }

    #[test]
    fn endless_lines_and_files_are_read_in_bounded_pieces() {
        let endless = "x".repeat(LINE_BYTES_MAX * 2);
        let text = format!("{endless}\n4000-5000 r-xp 0 0:0 1 /ok\n6000-7000 r-xp 0 0:0 1 /cut");
        let starts = |bytes_max| {
            let mut starts = Vec::new();
            each_line(text.as_bytes(), bytes_max, |line| starts.push(line.map(|line| line.start))).unwrap();
            starts
        };
        assert_eq!(starts(u64::MAX), [None, None, None, Some(0x4000), None]);
        assert_eq!(starts(LINE_BYTES_MAX as u64 + 1), [None, None]);
    }
}
