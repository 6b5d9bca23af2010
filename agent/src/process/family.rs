//! The family of a process: processes that were forked from one program, of the same user. Their memory was the same at
//! the fork. It has the same objects at the same addresses then, and often also after all have made the same ones.
//!
//! The kernel gives each program 16 random bytes when it starts (`AT_RANDOM`), and forked processes have the same ones.
//! Another program cannot know them, unless it may read the program's memory.

use super::key::ProcessKey;
use super::procfs::read_at_most;
use crate::runtimes::memory::ProcessMemory;

/// Largest size of the values that the kernel gives a program: two words for each of about twenty.
const VALUES_BYTES_MAX: u64 = 1024;
/// Key of the address of the random bytes.
const AT_RANDOM: u64 = 25;
/// Largest size of the description of a process.
const STATUS_BYTES_MAX: u64 = 4096;

/// The random bytes of the program that a family runs, and its user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Family {
    random: [u8; 16],
    /// Real, effective, saved and file system user.
    users: String,
}

impl Family {
    /// Returns the family of a process; `None` if the process has ended, or if it is not known. Reads memory of the
    /// process, which may block.
    pub(crate) fn of(key: ProcessKey) -> Option<Self> {
        let address = Self::random_address(key.pid)?;
        let status = read_at_most(format!("/proc/{}/status", key.pid), STATUS_BYTES_MAX).ok()?;
        let status = String::from_utf8_lossy(&status);
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.trim().to_owned();
        // A program may erase them, and all programs that do so would be one family.
        let random = ProcessMemory::open(key)?.array(address).filter(|random| *random != [0; 16])?;
        Some(Self { random, users })
    }

    /// Returns the address of the random bytes in a process.
    fn random_address(pid: u32) -> Option<u64> {
        let values = read_at_most(format!("/proc/{pid}/auxv"), VALUES_BYTES_MAX).ok()?;
        let words = values.as_chunks::<8>().0;
        let mut pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(u64::from_ne_bytes));
        pairs.find(|[key, _]| *key == AT_RANDOM).map(|[_, address]| address)
    }

    #[cfg(test)]
    pub(crate) fn of_test(random: [u8; 16], users: &str) -> Self {
        Self { random, users: users.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::process::test_record::start_boottime_ns;

    fn of(pid: u32) -> Option<Family> {
        Family::of(ProcessKey { pid, start_boottime_ns: start_boottime_ns(pid), exec_id: 1 })
    }

    /// Starts a shell that forks another one, and returns the process id of that one.
    fn fork() -> (Child, u32) {
        use std::io::{BufRead as _, BufReader};
        // A shell gives programs in the background no input of their own.
        let script = "exec 3<&0; (sh -c 'echo $PPID'; read line <&3) & wait";
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim().parse().unwrap())
    }

    #[test]
    fn forked_processes_are_a_family_and_other_runs_of_the_program_are_not() {
        let (mut one, inner) = fork();
        let (mut other, _) = fork();
        assert_ne!(one.id(), inner);
        let family = of(one.id());
        assert!(family.is_some());
        assert_eq!(of(inner), family);
        assert_ne!(of(other.id()), family);
        let reused = ProcessKey { pid: one.id(), start_boottime_ns: 1, exec_id: 1 };
        assert_eq!(Family::of(reused), None, "the number of the process belongs to another one now");
        for child in [&mut one, &mut other] {
            drop(child.stdin.take());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(of(one.id()), None);
    }

    #[test]
    fn a_program_that_erases_its_random_bytes_has_no_family() {
        use std::os::unix::fs::FileExt as _;
        let own = std::process::id();
        let address = Family::random_address(own).unwrap();
        let memory = std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        let mut random = [0; 16];
        memory.read_exact_at(&mut random, address).unwrap();
        assert!(of(own).is_some());
        memory.write_all_at(&[0; 16], address).unwrap();
        let family = of(own);
        memory.write_all_at(&random, address).unwrap();
        assert_eq!(family, None);
    }
}
