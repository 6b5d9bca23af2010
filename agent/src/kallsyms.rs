//! The kernel's own functions, from /proc/kallsyms: `address type name [module]` a line, addresses in hexadecimal.
//!
//! A kernel has 60,000 of them: 16 bytes each and one string with all names, 2.5 MB together, read once and again when the
//! loaded modules change. A kernel that hides its addresses (kernel.kptr_restrict) shows them all as zero.
//!
//! Invariant: symbols are sorted by address, and there is one per address.

use std::fs::File;
use std::io::{self, BufRead, Read as _};

/// Symbols kept: ten times what a kernel with all its modules has.
const SYMBOLS_MAX: usize = 1 << 20;
/// Bytes read of the file.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes in which the first function is found.
const FIRST_BYTES: u64 = 64 << 10;
/// No function is longer: an address further than this behind a symbol belongs to something that has none.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// Why there are no kernel symbols.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KallsymsError {
    #[error("/proc/kallsyms cannot be read: {0}")]
    Io(#[source] io::Error),
    #[error("/proc/kallsyms hides the addresses: CAP_SYSLOG is missing, or kernel.kptr_restrict is 2")]
    Hidden,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    name_start: u32,
    name_bytes: u16,
    /// Index into `modules`, from 1; 0 is the kernel itself.
    module: u16,
}

/// The symbol table of the running kernel.
#[derive(Debug)]
pub(crate) struct KernelSymbols {
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<Box<str>>,
}

impl KernelSymbols {
    /// Reads the running kernel's symbols: 20 to 50 ms of CPU, most of it the kernel's.
    pub(crate) fn load() -> Result<Self, KallsymsError> {
        Self::read(open()?, SYMBOLS_MAX)
    }

    /// Whether they can be read, at the cost of reading the first of them.
    pub(crate) fn check() -> Result<(), KallsymsError> {
        Self::read(open()?.take(FIRST_BYTES), 1).map(drop)
    }

    fn read(mut lines: impl BufRead, symbols_max: usize) -> Result<Self, KallsymsError> {
        let mut table = Self { symbols: Vec::new(), names: String::new(), modules: Vec::new() };
        let mut line = String::with_capacity(256);
        let mut hidden = false;
        while table.symbols.len() < symbols_max {
            line.clear();
            if lines.read_line(&mut line).map_err(KallsymsError::Io)? == 0 {
                break;
            }
            let Some((address, name, module)) = parse_line(&line) else { continue };
            hidden |= address == 0;
            if address != 0 {
                table.push(address, name, module);
            }
        }
        if table.symbols.is_empty() && hidden {
            return Err(KallsymsError::Hidden);
        }
        table.sort();
        Ok(table)
    }

    fn push(&mut self, address: u64, name: &str, module: &str) {
        let (Ok(name_start), Ok(name_bytes)) = (u32::try_from(self.names.len()), u16::try_from(name.len())) else {
            return;
        };
        let module = self.module_number(module);
        self.names.push_str(name);
        self.symbols.push(Symbol { address, name_start, name_bytes, module });
    }

    /// Symbols come module by module, so the last one is nearly always the right one.
    fn module_number(&mut self, module: &str) -> u16 {
        if module.is_empty() {
            return 0;
        }
        let known = self.modules.iter().rposition(|known| &**known == module);
        let index = known.unwrap_or_else(|| {
            self.modules.push(module.into());
            self.modules.len() - 1
        });
        u16::try_from(index + 1).unwrap_or(0)
    }

    /// Of several names of one address, the one with the fewest leading underscores is what people know; of those the first.
    fn sort(&mut self) {
        let names = std::mem::take(&mut self.names);
        let underscores = |symbol: &Symbol| {
            let name = name_of(&names, *symbol);
            name.len() - name.trim_start_matches('_').len()
        };
        // In place: a stable sort would need half as much memory again.
        self.symbols.sort_unstable_by_key(|symbol| (symbol.address, underscores(symbol), symbol.name_start));
        self.symbols.dedup_by_key(|symbol| symbol.address);
        self.symbols.shrink_to_fit();
        self.names = names;
        self.names.shrink_to_fit();
    }

    /// The function at `address`, and its module's name, empty for the kernel itself.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, &str)> {
        let index = self.symbols.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        let symbol = *self.symbols.get(index)?;
        if FUNCTION_BYTES_MAX <= address - symbol.address {
            return None;
        }
        let module = usize::from(symbol.module).checked_sub(1).and_then(|index| self.modules.get(index));
        Some((name_of(&self.names, symbol), module.map_or("", |module| module)))
    }
}

fn open() -> Result<impl BufRead, KallsymsError> {
    let file = File::open("/proc/kallsyms").map_err(KallsymsError::Io)?;
    Ok(io::BufReader::with_capacity(16 << 10, file.take(BYTES_MAX)))
}

fn name_of(names: &str, symbol: Symbol) -> &str {
    let start = symbol.name_start as usize;
    names.get(start..start + usize::from(symbol.name_bytes)).unwrap_or_default()
}

/// The address, name and module of a function; `None` for data and for what is not understood.
fn parse_line(line: &str) -> Option<(u64, &str, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let is_code = matches!(fields.next()?, "t" | "T" | "w" | "W");
    let name = fields.next()?;
    let module = fields.next().and_then(|module| module.strip_prefix('[')?.strip_suffix(']')).unwrap_or("");
    is_code.then_some((address, name, module))
}

/// The GNU build ID of the kernel, or of a module of it.
pub(crate) fn build_id(module: &str) -> Option<Vec<u8>> {
    const NOTES_BYTES_MAX: u64 = 64 << 10;
    let path = if module.is_empty() {
        "/sys/kernel/notes".to_owned()
    } else {
        format!("/sys/module/{module}/notes/.note.gnu.build-id")
    };
    gnu_build_id(&crate::procfs::read_at_most(path, NOTES_BYTES_MAX).ok()?)
}

/// ELF notes: | name_bytes u32 | descriptor_bytes u32 | type u32 | name | descriptor |, the last two padded to 4 bytes.
fn gnu_build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let (header, rest) = notes.split_at_checked(12)?;
        let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let (name_bytes, descriptor_bytes) = (number(0)? as usize, number(4)? as usize);
        let (name, rest) = rest.split_at_checked(name_bytes.next_multiple_of(4))?;
        let descriptor = rest.get(..descriptor_bytes)?;
        if number(8)? == NT_GNU_BUILD_ID && name.starts_with(b"GNU\0") {
            return (!descriptor.is_empty()).then(|| descriptor.to_vec());
        }
        notes = rest.get(descriptor_bytes.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
        ffffffff81000000 T _text\n\
        ffffffff81000000 T startup_64\n\
        ffffffff81000000 t another\n\
        ffffffff81002000 t do_work\n\
        ffffffff81003000 D some_data\n\
        ffffffff81001000 W weak_one\n\
        garbage\n\
        ffffffffc0001000 t ext4_read\t[ext4]\n\
        ffffffffc0002000 t nf_hook\t[nf_tables]\n\
        ffffffffc0003000 t ext4_write\t[ext4]\n";

    fn check(table: &KernelSymbols, address: u64, expected: Option<(&str, &str)>) {
        assert_eq!(table.find(address), expected, "{address:x}");
    }

    impl KernelSymbols {
        pub(crate) fn address_of(&self, name: &str) -> Option<u64> {
            self.symbols.iter().find(|symbol| name_of(&self.names, **symbol) == name).map(|symbol| symbol.address)
        }
    }

    #[test]
    fn an_address_finds_the_function_around_it() {
        let table = KernelSymbols::read(TEXT.as_bytes(), SYMBOLS_MAX).unwrap();
        check(&table, 0xffffffff80ffffff, None);
        check(&table, 0xffffffff81000000, Some(("startup_64", "")));
        check(&table, 0xffffffff81001fff, Some(("weak_one", "")));
        // Data is no function, so it does not end the one before it.
        check(&table, 0xffffffff81003004, Some(("do_work", "")));
        check(&table, 0xffffffffc0001001, Some(("ext4_read", "ext4")));
        check(&table, 0xffffffffc0002001, Some(("nf_hook", "nf_tables")));
        check(&table, 0xffffffffc0003001, Some(("ext4_write", "ext4")));
        check(&table, 0xffffffffc0003000 + FUNCTION_BYTES_MAX, None);
    }

    #[test]
    fn hidden_addresses_are_told_from_a_kernel_without_symbols() {
        let hidden = "0000000000000000 T _text\n0000000000000000 t do_work\n";
        assert!(matches!(KernelSymbols::read(hidden.as_bytes(), SYMBOLS_MAX), Err(KallsymsError::Hidden)));
        check(&KernelSymbols::read(&b""[..], SYMBOLS_MAX).unwrap(), 0xffffffff81000000, None);
    }

    #[test]
    fn lines_that_are_no_text_are_an_error_and_no_panic() {
        assert!(matches!(KernelSymbols::read(&b"\xff\xfe\n"[..], SYMBOLS_MAX), Err(KallsymsError::Io(_))));
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let note = |name: &[u8], descriptor: &[u8], kind: u32| {
            let mut bytes = Vec::new();
            for number in [name.len() as u32, descriptor.len() as u32, kind] {
                bytes.extend(number.to_ne_bytes());
            }
            for part in [name, descriptor] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let notes = [note(b"Linux\0", b"\0\0\0\0\x01", 0x257), note(b"GNU\0", &[7; 20], 3)].concat();
        assert_eq!(gnu_build_id(&notes), Some(vec![7; 20]));
        for length in 0..notes.len() {
            assert_eq!(gnu_build_id(&notes[..length]), None, "{length}");
        }
        let mut endless = notes.clone();
        endless[0..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(gnu_build_id(&endless), None);
    }

    #[test]
    fn this_kernel_is_read_or_says_why_not() {
        assert_eq!(KernelSymbols::check().is_ok(), KernelSymbols::load().is_ok());
        match KernelSymbols::load() {
            Ok(table) => assert!(table.symbols.len() > 10_000, "{}", table.symbols.len()),
            Err(error) => crate::report::skipped("this_kernel_is_read_or_says_why_not", &error),
        }
    }
}
