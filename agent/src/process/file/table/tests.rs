//! Files of this process, as BPF reports them.

use std::io::Write as _;

use ebpf::FileSegment;
use host_files::elf::ElfImage;

use super::super::{BuildIdKind, LoadedPart};
use super::*;

/// Returns BPF's key of a file, as far as the key is compared. The rest is zero.
pub(super) fn key_of(metadata: &Metadata) -> ebpf::FileKey {
    let mut key = [0; 40];
    key[..8].copy_from_slice(&metadata.ino().to_ne_bytes());
    key[8..16].copy_from_slice(&metadata.len().to_ne_bytes());
    key[16..24].copy_from_slice(&metadata.mtime().to_ne_bytes());
    key[24..28].copy_from_slice(&u32::try_from(metadata.mtime_nsec()).unwrap().to_ne_bytes());
    key
}

#[test]
fn all_files_are_forgotten_before_a_number_is_given_again() {
    let maps = Maps::of_process(std::process::id()).unwrap();
    let new = new_file(maps.iter().next().unwrap(), u32::MAX);
    let mut table = FileTable { reports: REPORTS_MAX - 2, ..FileTable::default() };
    assert!(matches!(table.report(&new), Reported::Unopened) && !table.is_full());
    assert!(matches!(table.report(&new), Reported::Unopened) && table.is_full());
    table.clear();
    assert!(!table.is_full());
}

#[test]
fn a_file_mapped_in_place_of_another_is_not_taken_for_it() {
    let address = key_of as *const () as u64;
    let maps = Maps::of_process(std::process::id()).unwrap();
    let mapping = maps.find(address).unwrap();
    let (file, metadata) = procfs::open_mapped(std::process::id(), mapping.start, mapping.end).unwrap();
    let mut new = NewFile { key: key_of(&metadata), ..new_file(mapping, std::process::id()) };
    assert!(check(&new, &file, &metadata).is_ok());
    assert!(FileTable::default().open(&new).is_ok());
    new.key[8] ^= 1;
    assert_eq!(FileTable::default().open(&new).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

/// Returns BPF's report of a file whose headers it could not read.
pub(in crate::process::file) fn new_file(mapping: &ProcessMapping, pid: u32) -> NewFile<'static> {
    let &ProcessMapping { start, end, offset, .. } = mapping;
    NewFile { key: [1; 40], number: 1, pid, start, end, offset, segment: None, build_id: &[], names: &[] }
}

#[test]
fn a_reported_file_and_the_same_file_opened_later_have_one_id() {
    let segment = FileSegment { offset: 0x1000, address: 0x2000, bytes: 0x500 };
    let mapping = ProcessMapping { start: 0x7000, end: 0x8000, offset: 0x1000, backing: Backing::Anonymous };
    let of_bpf = NewFile {
        segment: Some(segment),
        build_id: &[0xab, 0xcd],
        names: b"run\0tmp\0",
        ..new_file(&mapping, u32::MAX)
    };
    let reported = MappedFile::of_report(&of_bpf).unwrap();
    assert_eq!((&*reported.name, reported.address(0x1234)), ("/tmp/run", Some(0x2234)));
    assert_eq!(reported.build_ids, [(BuildIdKind::Gnu, "abcd".into())]);
    let mut parts = reported.parts.clone();
    parts.push(LoadedPart { offset: 0, address: 0, size: 0x1000 });
    let mut opened = MappedFile { parts, ..reported.clone() };
    opened.build_ids.push((BuildIdKind::Go, "go".into()));
    let another = MappedFile { parts: vec![LoadedPart { offset: 0, address: 0, size: 0x900 }], ..reported.clone() };
    for is_reported_first in [true, false] {
        let mut table = FileTable::default();
        assert_eq!(table.insert(another.clone()), FileId(0));
        let (first, second) = if is_reported_first {
            (table.insert_unopened(reported.clone()), table.insert(opened.clone()))
        } else {
            (table.insert(opened.clone()), table.insert_unopened(reported.clone()))
        };
        assert_eq!((first, second), (FileId(1), FileId(1)), "{is_reported_first}");
        assert_eq!((table.get(first), table.files.len(), table.unopened.len()), (Some(&opened), 2, 0));
        assert_eq!(table.insert(opened.clone()), first, "the file is found by its content");
    }
}

fn identified(table: &mut FileTable, path: &std::path::Path) -> FileId {
    let file = File::open(path).unwrap();
    let metadata = file.metadata().unwrap();
    table.identify(path.to_str().unwrap(), &file, &metadata).unwrap().0
}

#[test]
fn the_running_test_is_found_by_its_own_mapping() {
    let address = the_running_test_is_found_by_its_own_mapping as *const () as u64;
    let mut table = FileTable::default();
    let frame = table.number_own(address);
    let file = table.get(table.of_number(1).unwrap().unwrap()).unwrap();
    let image = ElfImage::read(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
    let offset = frame & ((1 << 40) - 1);
    assert_eq!(file.address(offset), image.virtual_address(offset));
    let part = file.part(file.address(offset).unwrap()).unwrap();
    assert!((part.address..part.address + part.size).contains(&file.address(offset).unwrap()));
    assert_eq!(file.build_ids[0].0, BuildIdKind::Gnu);
}

#[test]
fn a_path_that_leads_to_another_file_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libc.so");
    std::fs::write(&path, b"old").unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let inode = metadata.ino();
    let pid = std::process::id();
    let text = path.to_str().unwrap();
    assert_eq!(open_by_path(pid, device, inode, text).unwrap().1.ino(), inode);
    // Another file system may have an inode of that number.
    let on_other_device = open_by_path(pid, (device.0, device.1 + 1), inode, text);
    let has_two = open::has_two_devices(&File::open(&path).unwrap()).unwrap();
    assert_eq!(on_other_device.is_ok(), has_two);
    // The old file still exists, as it does while it is mapped, but its name leads to another.
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    std::fs::write(&path, b"new").unwrap();
    assert_eq!(open_by_path(pid, device, inode, text).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_file_that_is_not_elf_has_a_hash_and_offsets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.jsa");
    std::fs::write(&path, b"not an ELF file").unwrap();
    let mut table = FileTable::default();
    let id = identified(&mut table, &path);
    let file = table.get(id).unwrap();
    assert_eq!((file.build_ids[0].0, file.build_ids[0].1.len()), (BuildIdKind::Htlhash, 32));
    assert_eq!((file.address(77), file.part(77)), (Some(77), None));
}

#[test]
fn a_rewritten_file_is_another_file_and_an_equal_one_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, b"one").unwrap();
    let mut table = FileTable::default();
    let first = identified(&mut table, &path);
    assert_eq!(identified(&mut table, &path), first);
    File::options().append(true).open(&path).unwrap().write_all(b"two").unwrap();
    assert_ne!(identified(&mut table, &path), first);
    // Another inode with the content and the name of the first.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"one").unwrap();
    assert_eq!(identified(&mut table, &path), first);
}
