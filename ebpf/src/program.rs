//! Programs that BPF has sampled. `bpf/sampler.bpf.c` defines their layout.

use crate::ThreadPointer;

/// Name of the map of the programs that were sampled, by pid.
pub const PROGRAMS_MAP: &str = "programs";
/// Size of the description of a program, in bytes.
pub const PROGRAM_BYTES: usize = 48;
/// Number of bytes that identify a program, at the start of its description.
const KEY_BYTES: usize = 16;
/// Start of the last word of a description, [`Program::eager`].
const EAGER: usize = 40;

/// A program that was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Start of the process, as in its samples.
    pub start_boottime_ns: u64,
    /// Number of execve calls of the process, as in its samples.
    pub exec_id: u64,
    /// Place of the pointer to the context of the running thread, if the program publishes one. Addresses are those of
    /// the process.
    pub context: Option<ThreadPointer>,
    /// If this is not 0, BPF wakes user space for new functions of the program, because the program frees functions
    /// soon. All functions are new for a new number.
    pub eager: u64,
}

impl Program {
    /// Encodes the program for the map.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PROGRAM_BYTES] {
        let context = self.context.map_or([0; 3], ThreadPointer::to_words);
        let mut bytes = [0; PROGRAM_BYTES];
        let words = [self.start_boottime_ns, self.exec_id].into_iter().chain(context).chain([self.eager]);
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Adds to a description what it lacks and an earlier description of the same program has.
    pub fn keep(bytes: &mut [u8; PROGRAM_BYTES], earlier: &[u8; PROGRAM_BYTES]) {
        if bytes[..KEY_BYTES] != earlier[..KEY_BYTES] {
            return;
        }
        for part in [KEY_BYTES..EAGER, EAGER..PROGRAM_BYTES] {
            if bytes[part.clone()].iter().all(|byte| *byte == 0) {
                bytes[part.clone()].copy_from_slice(&earlier[part]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Libc;

    #[test]
    fn the_layout_is_that_of_the_c_struct() {
        let sampler = include_str!("../bpf/sampler.bpf.c");
        assert!(sampler.contains(&format!("_Static_assert(sizeof(struct program) == {PROGRAM_BYTES}, \"\");")));
        assert!(sampler.contains(&format!("}} {PROGRAMS_MAP} SEC(\".maps\");")));
        let words = |context| {
            let bytes = Program { start_boottime_ns: 1, exec_id: 2, context, eager: 0 }.to_bytes();
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
        };
        assert_eq!(words(None), [1, 2, 0, 0, 0, 0]);
        let dynamic = ThreadPointer::Dynamic { pair: 3, displacement: -4, libc: Libc::Glibc };
        assert_eq!(words(Some(dynamic)), [1, 2, 3, -4_i64 as u64, 4, 0]);
    }

    #[test]
    fn descriptions_of_a_program_are_joined_and_others_are_not() {
        let program = |exec_id, context, eager| Program { start_boottime_ns: 1, exec_id, context, eager };
        let context = Some(ThreadPointer::Fixed(-8));
        for (later, earlier, joined) in [
            (program(2, context, 0), program(2, None, 7), program(2, context, 7)),
            (program(2, None, 7), program(2, context, 0), program(2, context, 7)),
            (program(2, None, 8), program(2, None, 7), program(2, None, 8)),
            (program(2, None, 7), program(1, context, 0), program(2, None, 7)),
        ] {
            let mut bytes = later.to_bytes();
            Program::keep(&mut bytes, &earlier.to_bytes());
            assert_eq!(bytes, joined.to_bytes());
        }
    }
}
