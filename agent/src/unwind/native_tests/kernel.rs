//! The BPF programs in this process: compiled as they are, with `ebpf/native/kernel.c` in the kernel's place, and served by the agent's own
//! code, which opens the files that they meet and makes their tables.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use ebpf::{BLOCK_BYTES, FileEntry, FileKey, NewFile, Record, UserEnd, UserFrame};

use super::super::resident::slots::file_entry;
use super::super::resident::table_of;
use super::child::{Mapping, Registers};
use crate::file::table::FileTable;

/// What `struct native_mapping` is.
#[repr(C)]
struct NativeMapping {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    bytes: u64,
    modified_sec: i64,
    modified_nsec: i64,
    is_executable: u64,
}

type SetTask = unsafe extern "C" fn(i32, *const NativeMapping, u32, u64) -> i32;
type SetTable = unsafe extern "C" fn(u32, *const u8, u32);
type SetFile = unsafe extern "C" fn(*const FileKey, *const u8);
type ForgetFiles = unsafe extern "C" fn(u32);
type BeginAge = unsafe extern "C" fn();
type FileUsed = unsafe extern "C" fn(*const FileKey) -> u32;
type TakeNewFile = unsafe extern "C" fn(*mut *const u8) -> u64;
type SampleCpu = unsafe extern "C" fn(*const Registers, *mut *const u8) -> u64;

/// A kernel of one task. Each has its own memory.
pub(super) struct Kernel {
    set_task: SetTask,
    set_table: SetTable,
    set_file: SetFile,
    forget_files: ForgetFiles,
    begin_age: BeginAge,
    file_used: FileUsed,
    new_file: TakeNewFile,
    sample: SampleCpu,
    files: FileTable,
    tables: u32,
    /// Of the files that have a table.
    entries: Vec<(FileKey, FileEntry)>,
    mappings: Vec<Mapping>,
    /// Where a file begins that has this number: its inode.
    inodes: HashMap<u32, u64>,
}

/// The user part of a stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walked {
    /// Leaf first, each inside the instruction that ran or called.
    pub(super) frames: Vec<u64>,
    pub(super) end: UserEnd,
    /// How many of them were found by frame pointers alone.
    pub(super) by_frame_pointer: u16,
}

impl Kernel {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("kernel.so");
        compile(&library);
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library has no constructors. It stays, since tests that end need not give it back.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        macro_rules! function {
            ($name:literal, $type:ty) => {{
                // SAFETY: both arguments are valid.
                let function = unsafe { libc::dlsym(library, $name.as_ptr()) };
                assert!(!function.is_null(), "{:?}", $name);
                // SAFETY: in kernel.c the function has this type.
                unsafe { std::mem::transmute::<*mut libc::c_void, $type>(function) }
            }};
        }
        Self {
            set_task: function!(c"native_set_task", SetTask),
            set_table: function!(c"native_set_table", SetTable),
            set_file: function!(c"native_set_file", SetFile),
            forget_files: function!(c"native_forget_files", ForgetFiles),
            begin_age: function!(c"native_begin_age", BeginAge),
            file_used: function!(c"native_file_used", FileUsed),
            new_file: function!(c"native_new_file", TakeNewFile),
            sample: function!(c"native_sample", SampleCpu),
            files: FileTable::default(),
            tables: 0,
            entries: Vec::new(),
            mappings: Vec::new(),
            inodes: HashMap::new(),
        }
    }

    /// Has a process run, with these mappings.
    pub(super) fn run(&mut self, pid: u32, mappings: &[Mapping]) {
        let native = |mapping: &Mapping| {
            let Mapping { start, end, offset, inode, is_executable, .. } = *mapping;
            let (mut bytes, mut modified_sec, mut modified_nsec) = (0, 0, 0);
            if inode != 0 {
                let metadata = std::fs::metadata(&mapping.path).unwrap();
                (bytes, modified_sec, modified_nsec) = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
            }
            let is_executable = is_executable.into();
            NativeMapping { start, end, offset, inode, bytes, modified_sec, modified_nsec, is_executable }
        };
        let natives: Vec<_> = mappings.iter().map(native).collect();
        let vdso = mappings.iter().find(|mapping| mapping.path == "[vdso]").map_or(0, |vdso| vdso.start);
        // SAFETY: there are as many as it is told.
        let fit = unsafe { (self.set_task)(pid as i32, natives.as_ptr(), natives.len() as u32, vdso) };
        assert_eq!(fit, 1, "{} mappings", natives.len());
        self.mappings = mappings.to_vec();
    }

    /// The stack of the process that runs, which has these registers, once all files on it have their tables.
    pub(super) fn walk(&mut self, registers: &Registers) -> Walked {
        loop {
            let mut record = std::ptr::null();
            // SAFETY: the registers are as long as the C compiler's, and the record stays until the next one.
            let record = unsafe {
                let bytes = (self.sample)(registers, &mut record);
                std::slice::from_raw_parts(record, bytes as usize)
            };
            let Ok(Record::Running(sample)) = Record::read(record) else { panic!("no sample: {record:?}") };
            if !self.add_new_files() {
                let frames = sample.user_frames().map(|frame| self.address(frame)).collect();
                return Walked { frames, end: sample.user_end, by_frame_pointer: sample.header.fp_frames };
            }
        }
    }

    /// Has all files met anew, after so many.
    pub(super) fn forget_files(&mut self, met: u32) {
        // SAFETY: it takes any number.
        unsafe { (self.forget_files)(met) };
        self.inodes.clear();
    }

    pub(super) fn begin_age(&mut self) {
        // SAFETY: it takes nothing.
        unsafe { (self.begin_age)() };
    }

    /// When the tables that are there were looked up last.
    pub(super) fn used(&self) -> Vec<u32> {
        // SAFETY: the key is as long as in C.
        self.entries.iter().map(|(key, _)| unsafe { (self.file_used)(key) }).collect()
    }

    /// Has them looked up never.
    pub(super) fn set_unused(&mut self) {
        for (key, entry) in &self.entries {
            // SAFETY: both have as many bytes as in C.
            unsafe { (self.set_file)(key, entry.to_bytes().as_ptr()) };
        }
    }

    /// The numbers of the files that were met.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.inodes.keys().copied()
    }

    /// Says whether there were any.
    fn add_new_files(&mut self) -> bool {
        let mut are_any = false;
        loop {
            let mut told = std::ptr::null();
            // SAFETY: what is told is as long as it says, and stays until the next sample.
            let told = unsafe {
                match (self.new_file)(&mut told) {
                    0 => return are_any,
                    bytes => std::slice::from_raw_parts(told, bytes as usize),
                }
            };
            self.add(&NewFile::read(told).unwrap());
            are_any = true;
        }
    }

    /// Where in the process a frame is.
    fn address(&self, frame: UserFrame) -> u64 {
        let UserFrame::File { number, offset } = frame else {
            let UserFrame::Address(address) = frame else { unreachable!("there are two kinds") };
            return address;
        };
        let inode = self.inodes[&number];
        let holds = |mapping: &&Mapping| {
            let is_of_file = mapping.inode == inode && (inode != 0 || mapping.path == "[vdso]");
            let within = offset.checked_sub(mapping.offset);
            is_of_file && mapping.is_executable && within.is_some_and(|within| within < mapping.end - mapping.start)
        };
        let mapping = self.mappings.iter().find(holds).unwrap_or_else(|| panic!("{frame:x?} is mapped nowhere"));
        mapping.start + (offset - mapping.offset)
    }

    /// As the agent does it.
    fn add(&mut self, new: &NewFile<'_>) {
        let mapping = self.mappings.iter().find(|mapping| mapping.start == new.start).unwrap();
        self.inodes.insert(new.number, mapping.inode);
        let (file, id, place) = self.files.numbered(new).unwrap();
        let Some(table) = table_of(&file, place.as_ref()) else { return };
        let blocks: Vec<[u8; BLOCK_BYTES]> = table.blocks().collect();
        let entry = file_entry(new.number, None, &self.files.get(id).unwrap().parts);
        let entry = FileEntry { table: Some((self.tables, table.layout)), ..entry };
        // SAFETY: there are as many blocks as it is told, and both structs have as many bytes as in C, which their crate has tested.
        unsafe {
            (self.set_table)(self.tables, blocks.as_ptr().cast(), blocks.len() as u32);
            (self.set_file)(&new.key, entry.to_bytes().as_ptr());
        }
        self.tables += 1;
        self.entries.push((new.key, entry));
    }
}

/// The programs are built by clang for the kernel, and may as well be so by gcc here, which sees other things.
fn compile(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ebpf/native/kernel.c");
    let output = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-g", "-std=gnu11", "-Wall", "-Werror", "-fvisibility=hidden"])
        .args(["-Wno-unused-function", "-DVARVE_NATIVE", "-DTARGET_X86_64", "-o"])
        .args([library, &source])
        .output()
        .expect("gcc, which scripts/install-build-tools installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
