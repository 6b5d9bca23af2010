//! A child that a test stops at chosen instructions, by ptrace(2), which any user may use on children.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use host_files::maps::each_line;

/// Registers in the order of `struct registers` in C, and of ptrace. The order of DWARF differs.
pub(crate) type Registers = [u64; 21];

/// Index of the frame pointer in [`Registers`].
pub(super) const BP: usize = 4;
/// Index of the number of the system call in [`Registers`].
pub(super) const CALL: usize = 15;
/// Index of the program counter in [`Registers`].
pub(super) const PC: usize = 16;
/// Index of the stack pointer in [`Registers`].
pub(super) const SP: usize = 19;

/// Code of the instruction `syscall`.
const SYSCALL: u16 = 0x050f;
const SYSCALL_BYTES: u64 = 2;

/// Index of the thread's base in the words that ptrace returns.
const THREAD_BASE: usize = 21;

/// True if a thread with these registers is in a system call, or has just left one.
pub(super) fn is_in_call(registers: &Registers) -> bool {
    registers[CALL] != u64::MAX
}

/// A line of /proc/<pid>/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    pub(crate) is_executable: bool,
    pub(crate) path: String,
}

/// Returns the mappings of a process, in order.
pub(crate) fn mappings(pid: u32) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let lines = std::io::BufReader::new(File::open(format!("/proc/{pid}/maps")).unwrap());
    each_line(lines, u64::MAX, |line| {
        let line = line.unwrap();
        let path = String::from_utf8(line.path.to_vec()).unwrap();
        mappings.push(Mapping {
            start: line.start,
            end: line.end,
            offset: line.offset,
            inode: line.inode,
            is_executable: line.executable,
            path,
        });
    })
    .unwrap();
    // The kernel's vsyscall page is in no tree.
    mappings.retain(|mapping| mapping.path != "[vsyscall]");
    mappings
}

/// A stopped child with one thread. Dropping this value kills the child.
pub(crate) struct Child {
    pub(crate) pid: u32,
    pub(super) memory: File,
    /// Signal that is delivered when the child continues.
    signal: i32,
}

impl Child {
    /// Starts a program and stops it before its first instruction. Only the calling thread may control it.
    pub(super) fn start(program: &Path) -> Self {
        Self::start_with(program, &[])
    }

    /// Starts a program with arguments, as [`Self::start`].
    pub(crate) fn start_with(program: &Path, arguments: &[&OsStr]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command)
    }

    /// Starts a program with a library that is loaded before all others, as [`Self::start_with`].
    pub(crate) fn start_preloading(library: &Path, program: &Path, arguments: &[&OsStr]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_PRELOAD", library);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        // Without this setting, Go's runtime would interrupt the program again while the program is still stepped
        // through the last interruption.
        command.stdin(Stdio::null()).stdout(Stdio::null()).env("GODEBUG", "asyncpreemptoff=1");
        // SAFETY: only system calls are made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let pid = command.spawn().unwrap().id();
        let mut child = Self { pid, memory: File::open(format!("/proc/{pid}/mem")).unwrap(), signal: 0 };
        assert_eq!(child.wait(), Some(libc::SIGTRAP));
        child.memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        child
    }

    /// True if the child is at an `int3`.
    pub(super) fn is_at_breakpoint(&self) -> bool {
        self.word(self.registers()[PC]).is_some_and(|code| code as u8 == 0xcc)
    }

    /// Runs until after the next `int3` of the program.
    pub(crate) fn run(&mut self) {
        loop {
            self.resume(libc::PTRACE_CONT);
            match self.wait() {
                Some(libc::SIGTRAP) => return,
                Some(signal) => self.signal = signal,
                None => panic!("it ended"),
            }
        }
    }

    /// Runs the child for `time`, and stops it.
    pub(crate) fn run_for(&mut self, time: Duration) {
        assert!(self.try_run_for(time), "it ended");
    }

    /// Runs the child for `time`, and stops it. Returns false if it ended.
    pub(crate) fn try_run_for(&mut self, time: Duration) -> bool {
        self.resume(libc::PTRACE_CONT);
        std::thread::sleep(time);
        // The signal is for the main thread. If another thread of the child took it, that thread would stay stopped.
        // SAFETY: the child was started here, and was not reaped yet.
        unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.pid, libc::SIGSTOP) };
        loop {
            match self.wait() {
                Some(libc::SIGSTOP) => return true,
                Some(libc::SIGTRAP) => {}
                Some(signal) => self.signal = signal,
                None => return false,
            }
            self.resume(libc::PTRACE_CONT);
        }
    }

    /// Steps by one instruction, or into a signal handler.
    pub(super) fn step(&mut self) {
        self.resume(libc::PTRACE_SINGLESTEP);
        match self.wait() {
            Some(libc::SIGTRAP) => {}
            Some(signal) => self.signal = signal,
            None => panic!("it ended"),
        }
    }

    /// Returns the address of the control block of the child's thread.
    pub(crate) fn thread_base(&self) -> u64 {
        self.words()[THREAD_BASE]
    }

    /// Returns the stack pointer.
    pub(crate) fn stack_pointer(&self) -> u64 {
        self.words()[SP]
    }

    /// Delivers a signal to the child when it continues.
    pub(crate) fn deliver(&mut self, signal: i32) {
        self.signal = signal;
    }

    pub(crate) fn registers(&self) -> Registers {
        registers_of(self.pid, &self.memory)
    }

    fn words(&self) -> [u64; 27] {
        words_of(self.pid)
    }

    /// Returns a word of the child's memory.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        word_at(&self.memory, address)
    }

    fn resume(&mut self, how: libc::c_uint) {
        let signal = std::mem::take(&mut self.signal);
        self.ptrace(how, signal as usize as *mut libc::c_void);
    }

    fn ptrace(&self, what: libc::c_uint, data: *mut libc::c_void) -> libc::c_long {
        ptrace(what, self.pid, data)
    }

    /// Waits until the child stops. Returns its signal; `None` if it ended.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { libc::waitpid(self.pid as i32, &mut status, libc::__WALL) };
        assert_eq!(waited, self.pid as i32, "{}", std::io::Error::last_os_error());
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }
}

/// A stopped thread of a process that runs otherwise. Dropping this value continues the thread.
pub(crate) struct StoppedThread {
    tid: u32,
    signal: i32,
}

impl StoppedThread {
    /// Stops a thread; `None` if it has ended.
    pub(crate) fn stop(tid: u32) -> Option<Self> {
        if ptrace(libc::PTRACE_SEIZE, tid, std::ptr::null_mut()) != 0 {
            return None;
        }
        ptrace(libc::PTRACE_INTERRUPT, tid, std::ptr::null_mut());
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { libc::waitpid(tid as i32, &mut status, libc::__WALL) };
        if waited != tid as i32 || !libc::WIFSTOPPED(status) {
            return None;
        }
        // A signal that arrives at this moment stops the thread first.
        let is_stop = status >> 16 == libc::PTRACE_EVENT_STOP;
        Some(Self { tid, signal: if is_stop { 0 } else { libc::WSTOPSIG(status) } })
    }

    /// Returns the registers of the thread. `memory` is that of its process.
    pub(crate) fn registers(&self, memory: &File) -> Registers {
        registers_of(self.tid, memory)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        ptrace(libc::PTRACE_DETACH, self.tid, self.signal as usize as *mut libc::c_void);
    }
}

fn registers_of(tid: u32, memory: &File) -> Registers {
    let mut registers: Registers = *words_of(tid).first_chunk().unwrap();
    // If a signal ended a system call, its handler is not in the call: a clock would interrupt it in user mode.
    if word_at(memory, registers[PC] - SYSCALL_BYTES).is_none_or(|code| code as u16 != SYSCALL) {
        registers[CALL] = u64::MAX;
    }
    registers
}

fn words_of(tid: u32) -> [u64; 27] {
    // SAFETY: zeroed bytes are a valid value of this struct.
    let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let result = ptrace(libc::PTRACE_GETREGS, tid, (&raw mut all).cast());
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the struct consists of 27 words.
    unsafe { std::mem::transmute::<libc::user_regs_struct, [u64; 27]>(all) }
}

fn word_at(memory: &File, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, address).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

fn ptrace(what: libc::c_uint, tid: u32, data: *mut libc::c_void) -> libc::c_long {
    // SAFETY: `data` is a signal number, or what the request `what` needs.
    unsafe { libc::ptrace(what, tid as i32, std::ptr::null_mut::<libc::c_void>(), data) }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child was started here. If it was reaped already, no child has its pid.
        unsafe {
            let mut status = 0;
            if libc::waitpid(self.pid as i32, &mut status, libc::__WALL | libc::WNOHANG) == 0 {
                libc::kill(self.pid as i32, libc::SIGKILL);
                while libc::waitpid(self.pid as i32, &mut status, libc::__WALL) == self.pid as i32
                    && libc::WIFSTOPPED(status)
                {}
            }
        }
    }
}
