//! The BPF programs in this process: compiled with `ebpf/native/kernel.c` in place of the kernel. The agent's own code
//! opens the files that the programs report, and makes the unwind tables of these files.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use ebpf::{BLOCK_BYTES, FileEntry, FileKey, NewFile, RUNTIMES_MAX, Record, ThreadPointer, UserEnd, UserFrame};

use super::child::{Mapping, Registers};
use crate::process::file::FileId;
use crate::process::file::table::FileTable;
use crate::process::key::ProcessKey;
use crate::runtimes::languages::hotspot::process::HotSpot;
use crate::runtimes::{NewProcess, Recognised, Runtimes};
use crate::unwind::bpf_tables::slots::file_entry;
use crate::unwind::file_table::table_of;

/// A mapping in the layout of `struct native_mapping` in C.
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
type BeginEpoch = unsafe extern "C" fn();
type FileUsed = unsafe extern "C" fn(*const FileKey) -> u32;
type SetThreadBase = unsafe extern "C" fn(u64);
type SetStartCode = unsafe extern "C" fn(u64);
type SetHotSpot = unsafe extern "C" fn(*const u8);
type SetRuntime = unsafe extern "C" fn(u32, *const u8);
type TakeNewFile = unsafe extern "C" fn(*mut *const u8) -> u64;
type ReadWindow = unsafe extern "C" fn(u64, u32, u32, *mut u8) -> i32;
type ReadThreadPointer = unsafe extern "C" fn(*const u64, *mut u64) -> i32;
type SampleCpu = unsafe extern "C" fn(*const Registers, *mut *const u8) -> u64;

/// A fake kernel with one task. Each instance is a library of its own, with its own variables.
pub(crate) struct Kernel {
    set_task: SetTask,
    set_table: SetTable,
    set_file: SetFile,
    forget_files: ForgetFiles,
    begin_epoch: BeginEpoch,
    file_used: FileUsed,
    set_thread_base: SetThreadBase,
    set_start_code: SetStartCode,
    set_runtime: SetRuntime,
    set_hotspot: SetHotSpot,
    new_file: TakeNewFile,
    read_window: ReadWindow,
    read_thread_pointer: ReadThreadPointer,
    sample: SampleCpu,
    files: FileTable,
    pub(crate) runtimes: Runtimes,
    tables: u32,
    /// Entries of the files that have a table.
    entries: Vec<(FileKey, FileEntry)>,
    mappings: Vec<Mapping>,
    /// Inode of each file, by its number.
    inodes: HashMap<u32, u64>,
    /// Files, by their numbers.
    ids: HashMap<u32, FileId>,
}

/// The user part of a stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walked {
    /// Addresses of the frames, leaf first. Each lies inside the instruction that ran or called.
    pub(super) frames: Vec<u64>,
    pub(super) end: UserEnd,
    /// Number of frames that were found by frame pointers.
    pub(super) by_frame_pointer: u16,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("kernel.so");
        compile(&library);
        let path = CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library has no constructors. It is never unloaded.
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
            begin_epoch: function!(c"native_begin_epoch", BeginEpoch),
            file_used: function!(c"native_file_used", FileUsed),
            set_thread_base: function!(c"native_set_thread_base", SetThreadBase),
            set_start_code: function!(c"native_set_start_code", SetStartCode),
            set_runtime: function!(c"native_set_runtime", SetRuntime),
            set_hotspot: function!(c"native_set_hotspot", SetHotSpot),
            new_file: function!(c"native_new_file", TakeNewFile),
            read_window: function!(c"native_read_window", ReadWindow),
            read_thread_pointer: function!(c"native_read_thread_pointer", ReadThreadPointer),
            sample: function!(c"native_sample", SampleCpu),
            files: FileTable::default(),
            runtimes: Runtimes::default(),
            tables: 0,
            entries: Vec::new(),
            mappings: Vec::new(),
            inodes: HashMap::new(),
            ids: HashMap::new(),
        }
    }

    /// Reads bytes of the running process through a window, as BPF does. `None` if they cannot be read.
    pub(super) fn read_window(&self, address: u64, bytes: usize, side: u32) -> Option<Vec<u8>> {
        let mut to = vec![0; bytes];
        // SAFETY: the function writes at most `bytes` bytes.
        let is_read = unsafe { (self.read_window)(address, bytes as u32, side, to.as_mut_ptr()) };
        (is_read != 0).then_some(to)
    }

    /// Sets the running process and its mappings.
    pub(crate) fn run(&mut self, pid: u32, mappings: &[Mapping]) {
        let native = |mapping: &Mapping| {
            let Mapping { start, end, offset, inode, is_executable, .. } = *mapping;
            let mut bytes = 0;
            let mut modified_sec = 0;
            let mut modified_nsec = 0;
            // Mappings such as those of io_uring and of a memfd have an inode, but no file with a name.
            if inode != 0 && mapping.path.starts_with('/') && !mapping.path.starts_with("/memfd:") {
                let metadata = std::fs::metadata(&mapping.path).unwrap();
                (bytes, modified_sec, modified_nsec) = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
            }
            let is_executable = is_executable.into();
            NativeMapping { start, end, offset, inode, bytes, modified_sec, modified_nsec, is_executable }
        };
        let natives: Vec<_> = mappings.iter().map(native).collect();
        let vdso = mappings.iter().find(|mapping| mapping.path == "[vdso]").map_or(0, |vdso| vdso.start);
        // SAFETY: the length is that of the array.
        let fit = unsafe { (self.set_task)(pid as i32, natives.as_ptr(), natives.len() as u32, vdso) };
        assert_eq!(fit, 1, "{} mappings", natives.len());
        self.mappings = mappings.to_vec();
    }

    /// Reads a pointer that the running thread has for itself; `None` if it cannot be read.
    pub(crate) fn thread_pointer(&self, place: ThreadPointer) -> Option<u64> {
        let mut value = 0;
        // SAFETY: the words have the layout of the struct in C.
        let is_read = unsafe { (self.read_thread_pointer)(place.to_words().as_ptr(), &mut value) };
        (is_read != 0).then_some(value)
    }

    /// Sets the address of the control block of the running thread. [`Self::run`] sets it to 0.
    pub(crate) fn set_thread_base(&mut self, base: u64) {
        // SAFETY: it takes any number.
        unsafe { (self.set_thread_base)(base) };
    }

    /// Takes the file at `path` for the executable of the running process. [`Self::run`] takes the first one.
    pub(crate) fn set_executable(&mut self, path: &Path) {
        let is_code = |mapping: &&Mapping| mapping.is_executable && Path::new(&mapping.path) == path;
        let start = self.mappings.iter().find(is_code).unwrap().start;
        // SAFETY: it takes any number.
        unsafe { (self.set_start_code)(start) };
    }

    /// Walks the stack of the running process, whose registers are `registers`. There are no frames of runtimes on it.
    pub(super) fn walk(&mut self, registers: &Registers) -> Walked {
        let (frames, end, by_frame_pointer) = self.sample(registers);
        Walked { frames: frames.into_iter().map(|frame| self.address(frame)).collect(), end, by_frame_pointer }
    }

    /// Returns the frames of the running process, leaf first, the end of its stack, and the number of frames that were
    /// found by frame pointers. Repeats the walk until all files on the stack have their tables.
    pub(crate) fn sample(&mut self, registers: &Registers) -> (Vec<UserFrame>, UserEnd, u16) {
        loop {
            let mut record = std::ptr::null();
            // SAFETY: the registers have the layout of the C struct, and the record is valid until the next call.
            let record = unsafe {
                let bytes = (self.sample)(registers, &mut record);
                std::slice::from_raw_parts(record, bytes as usize)
            };
            let Ok(Record::Running(sample)) = Record::read(record) else { panic!("no sample: {record:?}") };
            if !self.add_new_files() {
                return (sample.user_frames().collect(), sample.user_end, sample.header.fp_frames);
            }
        }
    }

    /// Forgets all files, and sets the number of files that got a number before to `met`.
    pub(super) fn forget_files(&mut self, met: u32) {
        // SAFETY: it takes any number.
        unsafe { (self.forget_files)(met) };
        self.inodes.clear();
    }

    pub(super) fn begin_epoch(&mut self) {
        // SAFETY: it takes nothing.
        unsafe { (self.begin_epoch)() };
    }

    /// Returns the time of the last lookup of each table.
    pub(super) fn used(&self) -> Vec<u32> {
        // SAFETY: the key has the size of the C struct.
        self.entries.iter().map(|(key, _)| unsafe { (self.file_used)(key) }).collect()
    }

    /// Sets the times of the last lookup to 0.
    pub(super) fn set_unused(&mut self) {
        for (key, entry) in &self.entries {
            // SAFETY: both have the sizes of the C structs.
            unsafe { (self.set_file)(key, entry.to_bytes().as_ptr()) };
        }
    }

    /// Returns the numbers of the files that were seen.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.inodes.keys().copied()
    }

    /// Adds the files that were reported. Returns false if there were none.
    fn add_new_files(&mut self) -> bool {
        let mut are_any = false;
        loop {
            let mut report = std::ptr::null();
            // SAFETY: the report has the returned length, and is valid until the next sample.
            let report = unsafe {
                match (self.new_file)(&mut report) {
                    0 => return are_any,
                    bytes => std::slice::from_raw_parts(report, bytes as usize),
                }
            };
            self.add(&NewFile::read(report).unwrap());
            are_any = true;
        }
    }

    /// Returns the address of a frame in the process.
    pub(crate) fn address(&self, frame: UserFrame) -> u64 {
        let UserFrame::File { number, offset } = frame else {
            let UserFrame::Address(address) = frame else { panic!("{frame:x?} has no address") };
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

    /// True if a frame is in the loop of an interpreter.
    pub(crate) fn is_loop(&self, number: u32, offset: u64) -> bool {
        let file = self.ids.get(&number).and_then(|id| self.files.get(*id));
        let address = file.and_then(|file| file.address(offset));
        address.is_some_and(|address| self.runtimes.loop_at(number, address).is_some())
    }

    fn store_runtime(&self, recognised: &Recognised) {
        if let Recognised { id, new: Some(runtime) } = recognised {
            // SAFETY: the bytes have the size of the C struct, which their crate tests.
            unsafe { (self.set_runtime)((id % RUNTIMES_MAX).into(), runtime.to_bytes(*id).as_ptr()) };
            self.runtimes.stored(*id);
        }
    }

    /// Adds HotSpot to the running process.
    pub(crate) fn add_hotspot(&self, key: ProcessKey, hotspot: HotSpot) {
        self.runtimes.add_hotspot(key, hotspot);
        for NewProcess { process, recognised, .. } in self.runtimes.take_processes() {
            self.store_runtime(&recognised);
            // SAFETY: the bytes have the size of the C struct, which their crate tests.
            unsafe { (self.set_hotspot)(process.to_bytes(recognised.id).as_ptr()) };
        }
    }

    /// Adds a file as the agent does.
    fn add(&mut self, new: &NewFile<'_>) {
        let mapping = self.mappings.iter().find(|mapping| mapping.start == new.start).unwrap();
        self.inodes.insert(new.number, mapping.inode);
        // Memory that is shared between processes has a file that cannot be opened.
        if mapping.path.starts_with("/dev/zero") {
            return;
        }
        let opened = self.files.open(new).unwrap();
        self.ids.insert(new.number, opened.id);
        let Some(table) = table_of(&opened.file, opened.origin.as_ref()) else { return };
        let blocks: Vec<[u8; BLOCK_BYTES]> = table.blocks().collect();
        let path = self.mappings.iter().find(|mapping| mapping.start == new.start).map_or("", |mapping| &mapping.path);
        let recognised = self.runtimes.recognise(new.number, &opened.file, path);
        if let Some(recognised) = &recognised {
            self.store_runtime(recognised);
        }
        let entry = file_entry(new.number, None, &self.files.get(opened.id).unwrap().parts);
        let runtime = recognised.map_or(0, |recognised| recognised.id);
        let entry = FileEntry { runtime, table: Some((self.tables, table.layout)), ..entry };
        // SAFETY: the length is that of `blocks`, and both structs have the sizes of the C structs, which their crate
        // tests.
        unsafe {
            (self.set_table)(self.tables, blocks.as_ptr().cast(), blocks.len() as u32);
            (self.set_file)(&new.key, entry.to_bytes().as_ptr());
        }
        self.tables += 1;
        self.entries.push((new.key, entry));
    }
}

/// Compiles the programs with gcc. It finds other faults than clang, which compiles them for the kernel.
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
