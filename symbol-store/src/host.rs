//! Files of this host by build ID.
//!
//! A profile names a path; what stands there now may be another version of the file, or nothing, or stand there only
//! inside a container. So the path is a hint for where to look, in this order:
//!
//! 1. the path, in our own root;
//! 2. `/proc/<pid>/map_files/*` and `/proc/<pid>/exe` of every process that maps a file of this path: the very file
//!    that runs, even if it was deleted or replaced, in whatever mount namespace;
//! 3. the path in the root of such a process.
//!
//! Invariant: a file is returned only if its own build ID, or its htlhash, is the one that was asked for.

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

/// A file with the build ID that was asked for.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) file: File,
    pub(crate) image: ElfImage,
    /// The file to which its debug information was moved.
    pub(crate) debug_file: Option<File>,
    /// Whether one of the two has DWARF.
    pub(crate) has_dwarf: bool,
}

/// The search for files of this host by build ID.
#[derive(Debug)]
pub(crate) struct HostSearch {
    /// Where distributions put debug files, in every root: `/usr/lib/debug`.
    debug_directory: String,
    /// What all processes map, as read at that time.
    mapped: Mutex<Option<(Instant, Arc<MappedFiles>)>>,
}

/// A program, and where it was found: its debug file is looked for beside it.
struct Program {
    file: File,
    image: ElfImage,
    root: Root,
}

impl HostSearch {
    pub(crate) fn new(debug_directory: String) -> Self {
        Self { debug_directory, mapped: Mutex::new(None) }
    }

    /// The file that `id` names. `path` is where a profile saw it mapped, or empty. Reads headers of the candidates,
    /// and `/proc/<pid>/maps` of all processes if the path alone does not lead to it.
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
            // The debug package of a program that is not installed, or that runs where we cannot see it.
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

    /// What all processes map, read again when it is old. Two searches at once may both read it.
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

    /// The separate debug file of `program`, which runs from `path`: by its build ID, else by its debug link, in the
    /// program's own root.
    fn debug_file(&self, program: &Program, path: &str) -> Option<File> {
        let by_id = program.image.gnu_build_id.clone().map(BuildId::Gnu);
        if let Some(file) = by_id.and_then(|id| debug_file::by_id(&program.root, &self.debug_directory, &id)) {
            return Some(file);
        }
        debug_file::by_link(&program.root, &self.debug_directory, &program.file, path, |link, file| {
            let image = ElfImage::read(file).ok()?;
            // The checksum alone is 32 bits, and a program's own name may come first.
            let is_it = image.gnu_build_id == program.image.gnu_build_id && elf::has_dwarf(file);
            (is_it && link.matches(file).ok()?).then(|| file.try_clone().ok())?
        })
    }
}

/// The file that the owners of `mapped` run, if it is the one that `id` names.
fn of_process(mapped: &MappedFile, id: &BuildId, path: &str) -> Option<Program> {
    mapped.owners.iter().find_map(|owner| {
        let root = || Root::of_process(owner.pid).ok();
        let process = format!("/proc/{}", owner.pid);
        // Without CAP_CHECKPOINT_RESTORE `map_files` is closed to us; `exe` is not.
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
