//! Search for the separate debug file of a program.
//!
//! Invariant: the search does not leave the root directory of the program's process. A debug file is accepted only if
//! it has the build ID or the checksum that the program names.

use std::fs::File;

use proto::BuildId;

use crate::elf::{self, DebugLink, ElfImage};
use crate::limits;
use crate::open::Root;

/// Directory in which distributions put debug files.
const DIRECTORY: &str = "/usr/lib/debug";

/// Reads the section `.debug_frame` of the debug file of `program`, which was mapped from `path` in `root`. `None` if
/// no debug file has such a section.
///
/// If the program has no build ID, the debug file is identified by the checksum of its whole content. A debug file with
/// more than [`limits::CHECKSUM_BYTES_MAX`] bytes is then not used.
#[must_use]
pub fn debug_frame(root: &Root, program: &File, path: &str) -> Option<Vec<u8>> {
    let build_id = ElfImage::read(program).ok()?.gnu_build_id;
    let found = build_id.clone().and_then(|id| by_id(root, DIRECTORY, &BuildId::Gnu(id)));
    if let Some(debug_frame) = found.and_then(|file| elf::debug_frame(&file)) {
        return Some(debug_frame);
    }
    by_link(root, DIRECTORY, program, path, |link, file| {
        // The first candidate may be the program itself, which has the right build ID but no `.debug_frame`. The
        // checksum requires that the whole file is read, so it is the last check.
        let debug_frame = elf::debug_frame(file)?;
        let image = ElfImage::read(file).ok()?;
        let is_it = image.gnu_build_id == build_id && (build_id.is_some() || is_small_match(link, file));
        is_it.then_some(debug_frame)
    })
}

fn is_small_match(link: &DebugLink, file: &File) -> bool {
    let is_small = file.metadata().is_ok_and(|metadata| metadata.len() <= limits::CHECKSUM_BYTES_MAX);
    is_small && link.matches(file).unwrap_or_default()
}

/// Opens the debug file with the build ID `id` in `directory`: `.build-id/<first byte>/<other bytes>.debug`. `None` if
/// there is no such file, if the file has another build ID, or if `id` is not a GNU build ID.
#[must_use]
pub fn by_id(root: &Root, directory: &str, id: &BuildId) -> Option<File> {
    let BuildId::Gnu(bytes) = id else { return None };
    let (first, rest) = bytes.split_first()?;
    let path = format!("{directory}/.build-id/{first:02x}/{}.debug", proto::build_id::to_hex(rest));
    let file = root.open(&path).ok()?;
    ElfImage::read_if_named(&file, id).map(|_image| file)
}

/// Calls `accept` with each file to which the debug link of `program` may refer, until `accept` returns a result.
/// Returns this result, or `None` if no file is accepted. `program` was mapped from `path`.
#[must_use]
pub fn by_link<T>(
    root: &Root,
    directory: &str,
    program: &File,
    path: &str,
    accept: impl Fn(&DebugLink, &File) -> Option<T>,
) -> Option<T> {
    let link = DebugLink::read(program)?;
    let (beside, _) = path.rsplit_once('/')?;
    let name = &link.name;
    let paths = [format!("{beside}/{name}"), format!("{beside}/.debug/{name}"), format!("{directory}{beside}/{name}")];
    paths.iter().find_map(|path| accept(&link, &root.open(path).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Makes a folder with the files of a container in `root`. The debug link of `root/bin/program` names the file
    /// `debug`, which is in the folder but outside of `root`.
    fn root(build_id: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let script = "mkdir -p root/bin/.debug root/usr/lib/debug/bin; echo 'int main(void) { return 0; }' > program.c
            gcc -g -fno-asynchronous-unwind-tables -Wl,--build-id=$0 -o program program.c
            objcopy --only-keep-debug program debug; strip -g program; objcopy --add-gnu-debuglink=debug program
            cp program root/bin";
        let status = Command::new("sh").args(["-ec", script, build_id]).current_dir(folder.path()).status();
        assert!(status.unwrap().success());
        folder
    }

    fn find(folder: &Path) -> Option<Vec<u8>> {
        let root = Root::at(folder.join("root").to_str().unwrap()).unwrap();
        debug_frame(&root, &root.open("/bin/program").unwrap(), "/bin/program")
    }

    #[test]
    fn the_debug_file_is_found_in_all_places_of_the_root_and_nowhere_else() {
        let named = "0xabcdef1234";
        let places = ["bin/debug", "bin/.debug/debug", "usr/lib/debug/bin/debug"];
        let by_id = "usr/lib/debug/.build-id/ab/cdef1234.debug";
        let all = places.map(|place| ("none", place)).into_iter().chain(places.map(|place| (named, place)));
        for (build_id, place) in all.chain([(named, by_id)]) {
            let folder = root(build_id);
            assert_eq!(find(folder.path()), None);
            let path = folder.path().join("root").join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A symbolic link that leads out of the root is not followed.
            symlink(folder.path().join("debug"), &path).unwrap();
            assert_eq!(find(folder.path()), None, "{place}");
            std::fs::remove_file(&path).unwrap();
            std::fs::copy(folder.path().join("debug"), &path).unwrap();
            assert!(find(folder.path()).is_some_and(|found| !found.is_empty()), "{build_id} {place}");
        }
    }

    #[test]
    fn the_debug_file_of_another_program_is_not_used() {
        for build_id in ["none", "0xabcdef1234"] {
            let folder = root(build_id);
            let other = root("0xabcdef1235");
            std::fs::copy(other.path().join("debug"), folder.path().join("root/bin/debug")).unwrap();
            assert_eq!(find(folder.path()), None, "{build_id}");
        }
        // Without a build ID, the checksum decides: a debug file with one more byte is not used.
        let folder = root("none");
        let mut bytes = std::fs::read(folder.path().join("debug")).unwrap();
        bytes.push(0);
        std::fs::write(folder.path().join("root/bin/debug"), bytes).unwrap();
        assert_eq!(find(folder.path()), None);
    }
}
