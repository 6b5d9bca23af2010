//! The functions of the kernel, from /proc/kallsyms: `address type name [module]` per line, addresses in hexadecimal.
//!
//! A kernel has about 60,000 functions. Each function takes 16 bytes, and one string has all names: 2.5 MB in total.
//! They are read once, and again when the loaded modules change. A kernel that hides its addresses
//! (kernel.kptr_restrict) shows all as zero.
//!
//! Functions of modules are followed by the module's name. Transient code has module names, too: `[bpf]` for BPF
//! programs, `[__builtin__ftrace]` and others for code that the kernel generates.
//!
//! Invariant: symbols are sorted by address, and each address has one symbol.

use std::fs::File;
use std::io::{self, BufRead, Read as _};
use std::ops::Range;

/// Largest number of symbols that are kept: ten times as many as a kernel with all its modules has.
const SYMBOLS_MAX: usize = 1 << 20;
/// Largest number of bytes that are read from /proc/kallsyms.
const BYTES_MAX: u64 = 256 << 20;
/// Number of bytes at the start of /proc/kallsyms that certainly include the first function.
const FIRST_BYTES: u64 = 64 << 10;
/// Largest length of a function of the kernel itself, in bytes. An address that is further behind a symbol belongs to
/// code without a symbol.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// Largest length of a function in a module or a BPF program, in bytes. It is smaller, because other code may follow
/// such a function closely.
const LOADED_FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Reason why there are no kernel symbols.
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
    /// Index into `modules` plus 1; 0 for the kernel itself.
    module: u16,
}

/// The symbol table of the running kernel.
#[derive(Debug)]
pub(crate) struct KernelSymbols {
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<Box<str>>,
    /// Addresses of the kernel's own code, from `_stext` to `_etext`.
    own_code: Range<u64>,
}

impl KernelSymbols {
    /// Reads the symbols of the running kernel. Takes 20 to 50 ms of CPU, most of it in the kernel.
    pub(crate) fn load() -> Result<Self, KallsymsError> {
        Self::read(open()?, SYMBOLS_MAX)
    }

    /// Checks that the symbols can be read, by reading the first.
    pub(crate) fn check() -> Result<(), KallsymsError> {
        Self::read(open()?.take(FIRST_BYTES), 1).map(drop)
    }

    fn read(mut lines: impl BufRead, symbols_max: usize) -> Result<Self, KallsymsError> {
        let own_code = 0..u64::MAX;
        let mut table = Self { symbols: Vec::new(), names: String::new(), modules: Vec::new(), own_code };
        let mut line = String::with_capacity(256);
        let mut hidden = false;
        while table.symbols.len() < symbols_max {
            line.clear();
            if lines.read_line(&mut line).map_err(KallsymsError::Io)? == 0 {
                break;
            }
            let Some((address, kind, name, module)) = parse_line(&line) else { continue };
            match name {
                "_stext" => table.own_code.start = address,
                "_etext" if address != 0 => table.own_code.end = address,
                _ => {}
            }
            // Each function is preceded by padding for generated code, whose symbols would take half of the table.
            if is_code(kind) && !name.starts_with("__pfx_") {
                hidden |= address == 0;
                if address != 0 {
                    table.push(address, name, module);
                }
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

    /// Returns the number of a module. Symbols are sorted by module, so the module is nearly always the last one in
    /// `modules`.
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

    /// Sorts the symbols, and keeps one name per address: the one with the fewest leading underscores, which is the
    /// best known, or the first of several.
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

    /// Returns the function at `address` and its module's name, which is empty for the kernel itself.
    pub(crate) fn find(&self, address: u64) -> Option<(&str, &str)> {
        let index = self.symbols.partition_point(|symbol| symbol.address <= address).checked_sub(1)?;
        let symbol = *self.symbols.get(index)?;
        let is_own = symbol.module == 0;
        let bytes_max = if is_own { FUNCTION_BYTES_MAX } else { LOADED_FUNCTION_BYTES_MAX };
        if bytes_max <= address - symbol.address || is_own && !self.own_code.contains(&address) {
            return None;
        }
        let module = usize::from(symbol.module).checked_sub(1).and_then(|index| self.modules.get(index));
        Some((name_of(&self.names, symbol), module.map_or("", |module| module)))
    }

    /// True if the code at `address` is transient: it may appear and vanish without a change of the list of modules.
    pub(crate) fn is_transient(&self, address: u64) -> bool {
        let is_transient_module = |module: &str| module == "bpf" || module.starts_with("__builtin__");
        !self.own_code.contains(&address) && self.find(address).is_none_or(|(_, module)| is_transient_module(module))
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

/// Returns address, type, name and module of a symbol; `None` for a malformed line.
fn parse_line(line: &str) -> Option<(u64, &str, &str, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let kind = fields.next()?;
    let name = fields.next()?;
    let module = fields.next().and_then(|module| module.strip_prefix('[')?.strip_suffix(']')).unwrap_or("");
    Some((address, kind, name, module))
}

fn is_code(kind: &str) -> bool {
    matches!(kind, "t" | "T" | "w" | "W")
}

/// Returns the GNU build ID of the kernel, or of one of its modules.
pub(crate) fn build_id(module: &str) -> Option<Vec<u8>> {
    const NOTES_BYTES_MAX: u64 = 64 << 10;
    let path = if module.is_empty() {
        "/sys/kernel/notes".to_owned()
    } else {
        format!("/sys/module/{module}/notes/.note.gnu.build-id")
    };
    host_files::elf::gnu_build_id(&crate::process::procfs::read_at_most(path, NOTES_BYTES_MAX).ok()?)
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
        pub(crate) fn of_text(text: &str) -> Self {
            Self::read(text.as_bytes(), SYMBOLS_MAX).unwrap()
        }

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
        // Data does not end the function before it.
        check(&table, 0xffffffff81003004, Some(("do_work", "")));
        check(&table, 0xffffffffc0001001, Some(("ext4_read", "ext4")));
        check(&table, 0xffffffffc0002001, Some(("nf_hook", "nf_tables")));
        check(&table, 0xffffffffc0003001, Some(("ext4_write", "ext4")));
        check(&table, 0xffffffffc0003000 + LOADED_FUNCTION_BYTES_MAX, None);
    }

    #[test]
    fn loaded_code_does_not_get_the_name_of_other_code() {
        let table = KernelSymbols::of_text(
            "ffffffff81000000 T _stext\n\
             ffffffff81001000 T own\n\
             ffffffff81002000 D _etext\n\
             ffffffff90000000 t initial\n\
             ffffffffc0001000 t ext4_read\t[ext4]\n\
             ffffffffc0100000 t bpf_prog_1\t[bpf]\n\
             ffffffffc0200000 t trampoline\t[__builtin__ftrace]\n",
        );
        check(&table, 0xffffffff81001fff, Some(("own", "")));
        for (address, found, is_transient) in [
            (0xffffffff81001fff, Some(("own", "")), false),
            // The addresses without a name lie less than a megabyte behind the last function of the kernel, of a module
            // or of a BPF program.
            (0xffffffff81002000, None, true),
            (0xffffffff90000010, None, true),
            (0xffffffffc0001010, Some(("ext4_read", "ext4")), false),
            (0xffffffffc0001000 + LOADED_FUNCTION_BYTES_MAX, None, true),
            (0xffffffffc0100010, Some(("bpf_prog_1", "bpf")), true),
            (0xffffffffc0100000 + LOADED_FUNCTION_BYTES_MAX, None, true),
            (0xffffffffc0200010, Some(("trampoline", "__builtin__ftrace")), true),
        ] {
            check(&table, address, found);
            assert_eq!(table.is_transient(address), is_transient, "{address:x}");
        }
    }

    #[test]
    fn hidden_addresses_differ_from_a_kernel_without_symbols() {
        let hidden = "0000000000000000 T _text\n0000000000000000 t do_work\n";
        assert!(matches!(KernelSymbols::read(hidden.as_bytes(), SYMBOLS_MAX), Err(KallsymsError::Hidden)));
        check(&KernelSymbols::read(&b""[..], SYMBOLS_MAX).unwrap(), 0xffffffff81000000, None);
    }

    #[test]
    fn lines_that_are_not_text_are_an_error() {
        assert!(matches!(KernelSymbols::read(&b"\xff\xfe\n"[..], SYMBOLS_MAX), Err(KallsymsError::Io(_))));
    }

    #[test]
    fn the_build_id_of_this_kernel_is_among_its_notes() {
        let notes = std::fs::read("/sys/kernel/notes").unwrap();
        let id = build_id("").unwrap();
        assert!((16..=20).contains(&id.len()) && notes.windows(id.len()).any(|part| part == id), "{id:x?}");
        assert_eq!(build_id("no such module"), None);
    }

    #[test]
    fn the_symbols_of_this_kernel_are_read_or_refused() {
        assert_eq!(KernelSymbols::check().is_ok(), KernelSymbols::load().is_ok());
        match KernelSymbols::load() {
            Ok(table) => assert!(table.symbols.len() > 10_000, "{}", table.symbols.len()),
            Err(error) => testkit::report::skipped("the_symbols_of_this_kernel_are_read_or_refused", error),
        }
    }
}
