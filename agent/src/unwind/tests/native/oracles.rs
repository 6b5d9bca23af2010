//! Other unwinders of a stopped process. framehop is fast enough to run at every instruction, and gdb shares no code
//! with the tested unwinder.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};

use super::child::{BP, Mapping, PC, Registers, SP, is_in_call};

fn word(memory: &File, address: u64) -> Result<u64, ()> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, address).map_err(|_unreadable| ())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// True if `address` is in the code that a signal handler returns to: `mov $15,%rax; syscall`.
fn is_trampoline(memory: &File, address: u64) -> bool {
    let begins = |address| word(memory, address).is_ok_and(|code| code == 0x0f00_0000_0fc0_c748);
    let is_syscall = |address| word(memory, address).is_ok_and(|code| code as u16 == 0x050f);
    begins(address) || begins(address.wrapping_sub(7)) && is_syscall(address)
}

/// Returns the registers that a signal interrupted: `uc_mcontext.gregs` of the `ucontext_t` at the stack pointer.
fn interrupted(memory: &File, sp: u64) -> Result<UnwindRegsX86_64, ()> {
    let register = |number: libc::c_int| word(memory, sp + 40 + number as u64 * 8);
    Ok(UnwindRegsX86_64::new(register(libc::REG_RIP)?, register(libc::REG_RSP)?, register(libc::REG_RBP)?))
}

/// framehop with the files of a process. It tracks only the stack pointer and the frame pointer, and reads no memory to
/// compute a CFA. So it cannot unwind the dynamic linker's binding of functions, or functions that align their stack.
/// Signal frames are handled here.
pub(super) struct Framehop {
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    cache: CacheX86_64,
}

impl Framehop {
    /// Loads the files of a process. `twins` has, by path, the copies with call frame information of files that have
    /// none.
    pub(super) fn new(pid: u32, mappings: &[Mapping], twins: &HashMap<String, &Path>) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_executable) {
            let bytes = if mapping.path == "[vdso]" {
                let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
                File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, mapping.start).unwrap();
                bytes
            } else {
                let path = twins.get(&mapping.path).copied().unwrap_or(Path::new(&mapping.path));
                std::fs::read(path).unwrap()
            };
            unwinder.add_module(module(mapping, &bytes));
        }
        Self { unwinder, cache: CacheX86_64::new() }
    }

    /// Returns the frames of a stack, as in [`super::kernel::Walked`].
    pub(super) fn unwind(&mut self, memory: &File, registers: &Registers) -> Vec<u64> {
        let mut state = UnwindRegsX86_64::new(registers[PC], registers[SP], registers[BP]);
        let exact = FrameAddress::from_instruction_pointer;
        let mut address = match FrameAddress::from_return_address(registers[PC]) {
            Some(after_call) if is_in_call(registers) => after_call,
            _ => exact(registers[PC]),
        };
        let mut frames = Vec::new();
        let mut read = |at| word(memory, at);
        loop {
            let is_trampoline = is_trampoline(memory, address.address());
            frames.push(if is_trampoline { address.address() } else { address.address_for_lookup() });
            if is_trampoline {
                // framehop cannot unwind signal frames.
                let Ok(registers) = interrupted(memory, state.sp()) else { return frames };
                state = registers;
                address = exact(state.ip());
                continue;
            }
            match self.unwinder.unwind_frame(address, &mut state, &mut self.cache, &mut read) {
                Ok(Some(caller)) => address = FrameAddress::from_return_address(caller).unwrap(),
                _end => return frames,
            }
        }
    }
}

fn module(mapping: &Mapping, bytes: &[u8]) -> Module<Arc<[u8]>> {
    let file = object::File::parse(bytes).unwrap();
    // A mapping begins at a page, and the first part of that page may belong to another segment.
    let segment = file
        .segments()
        .find(|segment| segment.permissions().executable() && segment.file_range().0 & !0xfff == mapping.offset);
    let segment = segment.unwrap_or_else(|| panic!("{mapping:x?} has no segment"));
    let base = mapping.start.wrapping_sub(segment.address() - segment.file_range().0 + mapping.offset);
    let range = |name| {
        let section = file.section_by_name(name)?;
        Some(section.address()..section.address() + section.size())
    };
    let data = |name| Some(Arc::from(file.section_by_name(name)?.data().ok()?));
    let sections = ExplicitModuleSectionInfo {
        text_svma: range(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        debug_frame: data(".debug_frame"),
        ..ExplicitModuleSectionInfo::default()
    };
    Module::new(mapping.path.clone(), mapping.start..mapping.end, base, sections)
}

/// gdb, running a program.
pub(super) struct Gdb {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) pid: u32,
}

impl Gdb {
    /// Starts gdb, which runs a program up to its first `int3`. gdb reads the symbols and the call frame information of
    /// `twin`.
    ///
    /// # Errors
    /// gdb is not installed.
    pub(super) fn run(program: &Path, twin: &Path) -> std::io::Result<Self> {
        let mut command = Command::new("gdb");
        // With debug information, gdb would show tail calls, which are not on the stack.
        command
            .args(["-q", "-nx", "-iex", "set debug-file-directory", "-e"])
            .arg(program)
            .arg("-s")
            .arg(twin)
            .env("DEBUGINFOD_URLS", "")
            .env("LC_ALL", "C");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut gdb = Self { process, input, output, pid: 0 };
        for setting in [
            "confirm off",
            "pagination off",
            "width 0",
            "startup-with-shell off",
            "inferior-tty /dev/null",
            "backtrace past-main on",
            "language c",
            "$zero = 0",
        ] {
            gdb.execute(&format!("set {setting}"));
        }
        gdb.execute("handle SIGUSR1 nostop noprint pass");
        gdb.execute("run");
        gdb.pid = gdb.execute("info inferiors").iter().find_map(|line| process_number(line)).unwrap();
        Ok(gdb)
    }

    /// Steps by this many instructions.
    pub(super) fn step(&mut self, instructions: usize) {
        self.execute(&format!("stepi {instructions}"));
    }

    pub(super) fn registers(&mut self) -> Registers {
        // A zero replaces the flags, which gdb does not print as a number.
        let names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs zero rsp ss";
        let values: String = names.split(' ').map(|name| format!(", (long)${name}")).collect();
        let formats = " %lx".repeat(21);
        self.numbers(&format!("printf \"varve{formats}\\n\"{values}"))[0]
    }

    /// Returns the frames of the stack, as in [`super::kernel::Walked`].
    pub(super) fn unwind(&mut self, registers: &Registers) -> Vec<u64> {
        let mut found = self.numbers::<2>(r#"frame apply all -q printf "varve %lx %lx\n", (long)$pc, (long)$sp"#);
        // gdb lists inlined calls as frames of their own.
        found.dedup();
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let mut frames = Vec::new();
        let mut is_exact = !is_in_call(registers);
        // An address of 0 is not a caller.
        for [pc, _] in found.into_iter().take_while(|[pc, _]| *pc != 0) {
            let is_trampoline = is_trampoline(&memory, pc);
            frames.push(if is_exact || is_trampoline { pc } else { pc - 1 });
            is_exact = is_trampoline;
        }
        frames
    }

    fn numbers<const N: usize>(&mut self, command: &str) -> Vec<[u64; N]> {
        let lines = self.execute(command);
        let numbers = |line: &String| {
            let (_, line) = line.split_once("varve ")?;
            let numbers: Vec<_> = line.split(' ').map(|hex| u64::from_str_radix(hex, 16).unwrap()).collect();
            numbers.try_into().ok()
        };
        lines.iter().filter_map(numbers).collect()
    }

    /// Runs a command and returns its output.
    fn execute(&mut self, command: &str) -> Vec<String> {
        write!(self.input, "{command}\necho \\nthat is all\\n\n").unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "gdb ended at {command}: {lines:?}");
            if line.trim_end() == "that is all" {
                return lines;
            }
            lines.push(line.trim_end().to_owned());
        }
    }
}

fn process_number(line: &str) -> Option<u32> {
    line.split_once("process ")?.1.split(' ').next()?.parse().ok()
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // gdb kills its program, too.
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}
