//! Search for files of this host by build ID.
//!
//! A profile names a path. The file at this path may have been replaced or deleted, or it may exist only in a
//! container. So the path is only a hint. These files are tried, in this order:
//!
//! 1. the file at the path in the root directory of this process;
//! 2. `/proc/<pid>/map_files/*` and `/proc/<pid>/exe` of every process that maps a file of this path. These are the
//!    files that run, even if they were deleted or replaced, in any mount namespace;
//! 3. the file at the path in the root directory of such a process.
//!
//! Invariant: a file is returned only if it has the requested build ID or htlhash.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use host_files::elf::{self, ElfImage};
use host_files::open::{self, Root};
use host_files::{debug_file, vdso};
use parking_lot::Mutex;
use proto::BuildId;

use crate::limits;

mod mapped;

use mapped::{MappedFile, MappedFiles};

/// The result of a search: a file of this host with the requested build ID.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: File,
    pub(crate) image: ElfImage,
    /// Separate debug file of the program; `None` if none was found.
    pub(crate) debug_file: Option<File>,
    /// True if one of the two files has DWARF.
    pub(crate) has_dwarf: bool,
}

/// The search for files of this host by build ID.
#[derive(Debug)]
pub(crate) struct HostSearch {
    /// Directory within a root in which the distribution puts debug files: `/usr/lib/debug`.
    debug_directory: String,
    /// Mapped files of all processes, and the time at which they were read; `None` before the first search.
    mapped: Mutex<Option<(Instant, Arc<MappedFiles>)>>,
}

/// A program, and the root in which it was found. The debug file of the program is searched for in the same root.
struct Program {
    file: File,
    image: ElfImage,
    root: Root,
}

impl HostSearch {
    pub(crate) fn new(debug_directory: String) -> Self {
        Self { debug_directory, mapped: Mutex::new(None) }
    }

    /// Returns the file of this host with the build ID `id`. `path` is the path of the file in a profile, or empty.
    /// `None` if no such file is found.
    ///
    /// Reads the headers of the candidates, and `/proc/<pid>/maps` of all processes if the file is not at `path`.
    pub(crate) fn find(&self, id: &BuildId, path: &str) -> Option<Found> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if matches!(path, "[vdso]" | "linux-vdso.so.1") {
            let file = vdso::read()?;
            return ElfImage::read_if_named(&file, id).map(|image| Found {
                file,
                image,
                debug_file: None,
                has_dwarf: false,
            });
        }
        let program = path.starts_with('/').then(|| self.program(id, path)).flatten();
        let Some(program) = program else {
            // The program itself may not be installed, or not be visible, but its debug package may be there.
            let file = debug_file::by_id(&Root::host().ok()?, &self.debug_directory, id)?;
            let image = ElfImage::read_if_named(&file, id)?;
            return Some(Found { file, image, debug_file: None, has_dwarf: true });
        };
        let has_own_dwarf = elf::has_dwarf(&program.file);
        let debug_file = if has_own_dwarf { None } else { self.debug_file(&program, path) };
        let has_dwarf = has_own_dwarf || debug_file.is_some();
        Some(Found { file: program.file, image: program.image, debug_file, has_dwarf })
    }

    fn program(&self, id: &BuildId, path: &str) -> Option<Program> {
        let in_root = |root: Root| {
            let file = root.open(path).ok()?;
            Some(Program { image: ElfImage::read_if_named(&file, id)?, file, root })
        };
        if let Some(program) = Root::host().ok().and_then(in_root) {
            return Some(program);
        }
        let mapped = self.mapped_files();
        mapped.of_path(path).iter().take(limits::CANDIDATES_MAX).find_map(|file| of_process(file, id, path))
    }

    /// Returns the list of the mapped files of all processes. The list is read again if it is older than
    /// [`limits::MAPPED_FILES_AGE_MAX`]. Two concurrent searches may both read it.
    fn mapped_files(&self) -> Arc<MappedFiles> {
        if let Some((read_at, mapped)) = &*self.mapped.lock()
            && read_at.elapsed() < limits::MAPPED_FILES_AGE_MAX
        {
            return Arc::clone(mapped);
        }
        let mapped = Arc::new(MappedFiles::read());
        *self.mapped.lock() = Some((Instant::now(), Arc::clone(&mapped)));
        mapped
    }

    /// Returns the separate debug file of `program`, which was mapped from `path`. Searches the root of the program,
    /// first by build ID and then by debug link.
    fn debug_file(&self, program: &Program, path: &str) -> Option<File> {
        let by_id = program.image.gnu_build_id.clone().map(BuildId::Gnu);
        if let Some(file) = by_id.and_then(|id| debug_file::by_id(&program.root, &self.debug_directory, &id)) {
            return Some(file);
        }
        debug_file::by_link(&program.root, &self.debug_directory, &program.file, path, |link, file| {
            let image = ElfImage::read(file).ok()?;
            // A checksum of 32 bits is not enough to identify a file, so the build ID must be equal, too. The first
            // candidate may be the program itself, which has no DWARF.
            let is_it = image.gnu_build_id == program.image.gnu_build_id && elf::has_dwarf(file);
            (is_it && link.matches(file).ok()?).then(|| file.try_clone().ok())?
        })
    }
}

/// Opens the mapped file through one of the processes that map it, or else the file at `path` in the root of such a
/// process. Returns the first file whose build ID is `id`.
fn of_process(mapped: &MappedFile, id: &BuildId, path: &str) -> Option<Program> {
    mapped.owners.iter().find_map(|owner| {
        let root = || Root::of_process(owner.pid).ok();
        let process = format!("/proc/{}", owner.pid);
        // `map_files` needs CAP_CHECKPOINT_RESTORE; `exe` does not.
        let links = [format!("{process}/map_files/{:x}-{:x}", owner.start, owner.end), format!("{process}/exe")];
        let by_link = links.iter().find_map(|link| {
            let file = open::link(link).ok()?;
            Some(Program { image: ElfImage::read_if_named(&file, id)?, file, root: root()? })
        });
        by_link.or_else(|| {
            let root = root()?;
            let file = root.open(path).ok()?;
            Some(Program { image: ElfImage::read_if_named(&file, id)?, file, root })
        })
    })
}
