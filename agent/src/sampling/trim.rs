//! Gives unused memory of the agent back to the kernel.

#![allow(unsafe_code, reason = "madvise is called once, here")]

/// Drops the pages with code and constants of this program and its libraries. They are read again when they are used.
/// Most pages that the start used are not used later. The allocator returns free memory by itself.
pub(crate) fn trim_memory() {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for (start, end) in unchanged_file_mappings(&smaps) {
        // SAFETY: these mappings are read-only and all their pages are as in the file. A dropped page is read from the
        // file again when it is touched.
        unsafe {
            libc::madvise(start as *mut libc::c_void, end.saturating_sub(start), libc::MADV_DONTNEED);
        }
    }
}

/// Returns start and end of each private read-only mapping of a file in `/proc/<pid>/smaps` that has no modified page.
/// Relocations, breakpoints and uprobes modify pages of read-only mappings.
fn unchanged_file_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut mapping = None;
    let mut zeros = 0;
    for line in smaps.lines() {
        match line.split_once(':').map(|(name, value)| (name, value.trim_ascii_start())) {
            Some(("Anonymous" | "Swap", "0 kB")) => zeros += 1,
            // VmFlags is the last line of a mapping.
            Some(("VmFlags", _)) => found.extend(mapping.take().filter(|_| zeros == 2)),
            Some((name, _)) if !name.contains(' ') => {}
            _ => (mapping, zeros) = (file_mapping(line), 0),
        }
    }
    found
}

/// Returns start and end of the mapping that begins with this line, if it is a private read-only mapping of a file.
fn file_mapping(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let is_file = fields.nth(3)?.trim_start().starts_with('/');
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    (is_file && matches!(permissions, "r--p" | "r-xp")).then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn only_unmodified_file_mappings_are_dropped() {
        let mapping = |line: &str, anonymous: u32, swap: u32| {
            format!(
                "{line}\nRss: 8 kB\nAnonymous:   {anonymous} kB\nSwap:    {swap} kB\nSwapPss: 0 kB\nVmFlags: rd ex\n"
            )
        };
        let smaps = [
            mapping("1000-2000 r--p 00000000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("2000-3000 r-xp 00001000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("3000-4000 r--p 00002000 fe:00 24                     /usr/lib/a b.so", 4, 0),
            mapping("4000-5000 r--p 00003000 fe:00 24                     /usr/lib/a b.so", 0, 4),
            mapping("5000-6000 rw-p 00004000 fe:00 24                     /usr/lib/a b.so", 0, 0),
            mapping("6000-7000 r--p 00000000 00:00 0", 0, 0),
            mapping("7000-8000 r--s 00001000 00:10 26                     anon_inode:bpf-map", 0, 0),
            mapping("8000-9000 r-xp 00000000 00:00 0                      [vdso]", 0, 0),
            mapping("fffff000-100000000 r-xp 00000000 fe:00 25            /bin/c (deleted)", 0, 0),
        ];
        assert_eq!(
            unchanged_file_mappings(&smaps.concat()),
            [(0x1000, 0x2000), (0x2000, 0x3000), (0xffff_f000, 0x1_0000_0000)]
        );
    }

    #[test]
    fn this_program_continues_after_its_file_pages_are_dropped() {
        let resident_bytes = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let own = std::env::current_exe().unwrap();
            let of_own = smaps.split("VmFlags").filter(|mapping| mapping.contains(own.to_str().unwrap()));
            let rss = |mapping: &str| {
                let (_, rest) = mapping.split_once("\nRss:").unwrap();
                rest.trim_start().split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
            };
            of_own.map(rss).sum::<u64>()
        };
        let before = resident_bytes();
        trim_memory();
        let after = resident_bytes();
        assert!(after < before, "{after} of {before} bytes are left");
    }

    #[test]
    fn a_page_that_was_modified_before_it_became_read_only_is_kept() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let bytes = 4096;
        // SAFETY: a private mapping that nothing else uses. It is written while it is writable, and read until it is
        // unmapped.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
            assert_ne!(page, libc::MAP_FAILED);
            page.cast::<u8>().write_volatile(b'!');
            assert_eq!(libc::mprotect(page, bytes, libc::PROT_READ), 0);
            trim_memory();
            assert_eq!(page.cast::<u8>().read_volatile(), b'!');
            libc::munmap(page, bytes);
        }
    }
}
