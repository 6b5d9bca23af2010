//! Construction of a symcache from all symbols of a file and its debug file.
//!
//! DWARF comes first: the functions, lines and inlined calls of the file, or else of its debug file. Then the ELF
//! symbols fill the addresses that DWARF does not cover, such as assembly and libraries linked without debug
//! information. Last come the PLT, which gets one name as a whole, and the functions that only call frame information
//! describes. Of these functions, the start is known but not the name.

use std::borrow::Cow;

use symbolic_common::{Language, Name, NameMangling};
use symbolic_debuginfo::dwarf::DwarfDebugSession;
use symbolic_debuginfo::elf::ElfObject;
use symbolic_debuginfo::{Function, ParseObjectOptions, SymbolMap};
use symbolic_symcache::SymCacheConverter;

use super::Summary;
use super::call_frames;
use super::coverage::{Coverage, flatten};
use super::names::{self, Names};
use super::start_lines::StartLines;
use super::symbols::{Piece, Symbols};
use crate::limits;
use crate::source::Source;
use crate::table::entry;

/// The bytes of a file and of its debug file, and the virtual address `base`, to which all addresses in the symcache
/// are relative.
pub(super) struct Inputs<'a> {
    pub(super) file: &'a [u8],
    pub(super) debug_file: Option<&'a [u8]>,
    pub(super) base: u64,
}

/// Name of the PLT in a symbol table. The PLT is the code through which calls reach functions of other files.
const PLT: &str = "[plt]";

/// Builds a symcache. `None` if neither file is valid ELF. The summary of a stripped file has 0 functions.
pub(super) fn build(inputs: &Inputs<'_>) -> Option<(SymCacheConverter<'static>, Summary)> {
    let files = || [Some(inputs.file), inputs.debug_file].into_iter().flatten();
    let mut symbols = Symbols::default();
    let readable = files().filter_map(|bytes| symbols.add(bytes)).count();
    (readable > 0).then_some(())?;
    let code = symbols.code();
    let plt = symbols.plt();
    let pieces = symbols.into_pieces();

    let mut builder = Builder {
        converter: SymCacheConverter::new(),
        base: inputs.base,
        code,
        pieces,
        covered: Vec::new(),
        summary: Summary { functions: 0, source: Source::Dynsym },
    };
    builder.converter.add_transformer(Names::default());
    for bytes in files() {
        builder.add_dwarf(bytes);
        if builder.summary.functions > 0 {
            break;
        }
    }
    builder.add_symbols();
    builder.add_plt(&plt);
    let mut described = Vec::new();
    files().for_each(|bytes| call_frames::add(bytes, &mut described));
    builder.add_described(&described);
    Some((builder.converter, builder.summary))
}

struct Builder {
    converter: SymCacheConverter<'static>,
    base: u64,
    code: Coverage,
    pieces: Vec<Piece>,
    covered: Vec<(u64, u64)>,
    summary: Summary,
}

impl Builder {
    fn add_dwarf(&mut self, bytes: &[u8]) {
        let mut options = ParseObjectOptions::default();
        options.max_decompressed_section_size = Some(limits::SECTION_UNPACKED_BYTES_MAX);
        let Ok(elf) = ElfObject::parse_with_opts(bytes, options) else { return };
        if !elf.has_debug_info() {
            return;
        }
        // The map of symbols is empty, so that functions keep their DWARF names. With a full map, a function whose cold
        // part precedes its hot part would be named `function.cold` as a whole.
        let session = DwarfDebugSession::parse(&elf, SymbolMap::new(), self.base.cast_signed(), elf.kind());
        let Ok(session) = session else { return };
        let start_lines = StartLines::read(&elf);
        // A damaged unit is skipped, together with its own functions.
        for mut function in session.functions().flatten() {
            let (Some(start), Some(end)) = (
                function.address.checked_add(self.base),
                function.address.checked_add(self.base).and_then(|start| start.checked_add(function.size)),
            ) else {
                continue;
            };
            // The linker moves dropped functions to addresses such as 0, where they overlap other code.
            if !self.fits(start, end) {
                continue;
            }
            let symbol = self.name_of_symbol(function.name.as_str(), start);
            if symbol.is_none() && function.name.as_str().is_empty() {
                continue;
            }
            note_start_lines(&mut function, symbol.as_deref(), &start_lines);
            self.converter.process_symbolic_function(&function);
            self.covered.push((start, end));
            self.summary.functions += 1;
            self.summary.source = Source::Dwarf;
        }
    }

    fn add_symbols(&mut self) {
        let taken = Coverage::new(self.covered.clone());
        for piece in std::mem::take(&mut self.pieces) {
            let functions = self.fill(&taken, piece.start, piece.end, &piece.name);
            if functions > 0 {
                self.summary.functions += functions;
                self.summary.source = self.summary.source.max(piece.source);
            }
        }
    }

    /// Adds the PLT, which is not counted as a function of this file.
    fn add_plt(&mut self, plt: &[(u64, u64)]) {
        let taken = Coverage::new(self.covered.clone());
        for (start, end) in plt {
            self.fill(&taken, *start, *end, PLT);
        }
    }

    /// Adds the functions of which only the start is known.
    fn add_described(&mut self, functions: &[(u64, u64)]) {
        let taken = Coverage::new(self.covered.clone());
        let mut parts = 0;
        for (start, end, function) in flatten(functions.iter().map(|&(start, end)| (start, end, start)).collect()) {
            parts += self.fill(&taken, start, end, &entry::of_start(function));
        }
        if parts > 0 && self.summary.functions == 0 {
            self.summary.source = Source::CallFrames;
        }
    }

    /// Gives `name` to the parts of `start..end` that are code and not in `taken`. Returns the number of these parts.
    fn fill(&mut self, taken: &Coverage, start: u64, end: u64, name: &str) -> u64 {
        let mut parts = 0;
        for (start, end) in taken.gaps(start, end) {
            if !self.fits(start, end) {
                continue;
            }
            self.converter.process_symbolic_symbol(&symbolic_debuginfo::Symbol {
                name: Some(Cow::Borrowed(name)),
                address: start - self.base,
                size: end - start,
            });
            self.covered.push((start, end));
            parts += 1;
        }
        parts
    }

    /// Returns whether the addresses are code, and fit into the 32 bits of a symcache.
    fn fits(&self, start: u64, end: u64) -> bool {
        self.code.contains(start, end) && self.base <= start && end - self.base < u64::from(u32::MAX)
    }

    /// Returns the name that the ELF symbols have for the function at `start`, if it is better than `name`, its name in
    /// DWARF.
    fn name_of_symbol(&self, name: &str, start: u64) -> Option<String> {
        let piece = self.piece_at(start)?;
        let is_mangled = |name: &str| name.starts_with("_Z") || name.starts_with("_R");
        if name.is_empty() {
            // dwz moved the name to another file, which is not available.
            return Some(piece.name.clone());
        }
        // GCC writes no linkage name to DWARF for functions that are local to a unit. The DWARF name of `(anonymous
        // namespace)::hot` is only `hot`, and that of every lambda is `operator()`. rustc writes no linkage names with
        // `line-tables-only`. The cold part of a function has its own symbol, but is the same function.
        let symbol = piece.name.strip_suffix(".cold").unwrap_or(&piece.name);
        is_mangled(symbol).then_some(())?;
        (!is_mangled(name) && piece.start == start && symbol.contains(name_in_symbol(name))).then(|| symbol.to_owned())
    }

    fn piece_at(&self, address: u64) -> Option<&Piece> {
        let after = self.pieces.partition_point(|piece| piece.start <= address);
        self.pieces.get(after.checked_sub(1)?).filter(|piece| address < piece.end)
    }
}

/// Gives `function` the name `symbol`, if it is not `None`. Appends start lines to the names of `function` and of all
/// functions inlined into it, because symbolic has no field for start lines.
fn note_start_lines(function: &mut Function<'_>, symbol: Option<&str>, start_lines: &StartLines) {
    let file = function.lines.first().map(|line| line.file.name_str()).unwrap_or_default();
    let line = start_lines.get(function.name.as_str(), &file);
    let name = names::with_start_line(symbol.unwrap_or(function.name.as_str()), line);
    function.name = Name::new(Cow::Owned(name), NameMangling::Unknown, Language::Unknown);
    for inlinee in &mut function.inlinees {
        note_start_lines(inlinee, None, start_lines);
    }
}

/// Returns the part of a C++ or Rust name that occurs unchanged in the mangled name: the name without template
/// arguments. The part is empty for an operator or a closure.
fn name_in_symbol(name: &str) -> &str {
    if name.starts_with("operator") || name.starts_with('{') {
        return "";
    }
    name.split('<').next().unwrap_or_default().trim_start_matches('~')
}
