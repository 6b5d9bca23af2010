//! Records of the ring buffer. `bpf/record.h` defines their layout, and a test compares it with this module. A sample
//! is:
//!
//! | header, 72 bytes | `kernel_frames` x u64 | `user_words` x u64 | `labels` x 96 bytes | `links` x 24 bytes |
//!
//! A record of 24 bytes, which is shorter than a header, is the end of a wait ([`WaitEnd`]).
//!
//! Invariant: a record is returned whole or refused. Counts are checked against the record's length before they are
//! used.

use std::mem::{offset_of, size_of};

use crate::{KERNEL_FRAMES_MAX, USER_WORDS_MAX};

/// A frame of the user part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserFrame {
    /// A frame in a file.
    File {
        /// Number of the file ([`crate::NewFile::number`]).
        number: u32,
        /// Offset in the file, in bytes.
        offset: u64,
    },
    /// An address of the process, in memory without a file or in a file without a number.
    Address(u64),
    /// A function of a language runtime.
    Function {
        /// Id of the runtime.
        runtime: u16,
        /// Address of the function's object; 0 if functions are missing here.
        address: u64,
        /// Position in the function, by the rules of the runtime.
        position: u32,
        /// Number that identifies the object, so that another object at the same address is not mistaken for it. 0 if
        /// the object could not be read.
        identity: u32,
    },
}

/// Flag of a frame in a file.
const FRAME_IN_FILE: u64 = 1 << 63;
/// Number of bits of the offset, in a frame that lies in a file.
const FRAME_OFFSET_BITS: u32 = 40;
/// Flag of a function of a language runtime.
const FRAME_OF_RUNTIME: u64 = 1 << 62;
/// Number of the lowest bit of the id, in a function of a language runtime.
const FRAME_ID_SHIFT: u32 = 48;

impl UserFrame {
    /// Reads the next frame; `None` at the end.
    fn read(mut words: impl Iterator<Item = u64>) -> Option<Self> {
        let frame = words.next()?;
        Some(if frame & FRAME_IN_FILE != 0 {
            let number = u32::try_from((frame ^ FRAME_IN_FILE) >> FRAME_OFFSET_BITS).unwrap_or_default();
            Self::File { number, offset: frame & ((1 << FRAME_OFFSET_BITS) - 1) }
        } else if frame & FRAME_OF_RUNTIME != 0 {
            let runtime = u16::try_from((frame ^ FRAME_OF_RUNTIME) >> FRAME_ID_SHIFT).unwrap_or_default();
            let word = words.next()?;
            let (position, identity) = ((word >> 32) as u32, word as u32);
            Self::Function { runtime, address: frame & ((1 << FRAME_ID_SHIFT) - 1), position, identity }
        } else {
            Self::Address(frame)
        })
    }
}

/// Reason for the end of the user part of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserEnd {
    /// There is no user part, because the thread is a kernel thread.
    None,
    /// The outermost frame was reached.
    Root,
    /// No rule was found, or a rule or frame pointer led to no frame.
    Broken,
    /// The stack is deeper than [`USER_FRAMES_MAX`](crate::USER_FRAMES_MAX).
    Truncated,
    /// The program is a 32-bit program, of whose stack only the leaf is recorded.
    Compat,
}

/// Header of a sample, in the machine's byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleHeader {
    /// Time of the sample, on CLOCK_MONOTONIC.
    pub ktime_ns: u64,
    /// Start of the process, on CLOCK_BOOTTIME. Processes that had the same pid one after another differ in it.
    pub start_boottime_ns: u64,
    /// Number of `execve` calls of the process.
    pub exec_id: u64,
    /// Pid of the process, in the initial pid namespace.
    pub pid: u32,
    /// Id of the thread, in the initial pid namespace.
    pub tid: u32,
    /// Logical number of the CPU.
    pub cpu: u32,
    /// Number of frames of the kernel part.
    pub kernel_frames: u16,
    /// Number of words that the frames of the user part take.
    pub user_words: u16,
    /// Number that encodes the [`UserEnd`].
    pub user_end: u8,
    /// 1 for a thread of the kernel.
    pub kernel_thread: u8,
    /// Number of frames of the user part that were found by frame pointers.
    pub fp_frames: u16,
    /// Inclusion probability of a wait times 2^32, where 2^32 - 1 means always; 0 for a sample of a CPU.
    pub chance: u32,
    /// Number of the file that the process runs, in one sample of each program; 0 in all other samples.
    pub executable: u32,
    /// Number of labels.
    pub labels: u16,
    /// Number of links: 1 if the thread worked for a span, or else 0.
    pub links: u16,
    /// The thread's name, NUL-terminated.
    pub comm: [u8; 16],
}

/// A sample that borrows from its record. Only the header is copied.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The header, as BPF wrote it.
    pub header: SampleHeader,
    /// Reason for the end of the user part.
    pub user_end: UserEnd,
    /// Both parts of the stack, kernel part first, each leaf first: 8 bytes per word.
    pub frames: &'a [u8],
    labels: &'a [u8],
    /// The span for which the thread worked, if its program publishes OpenTelemetry's thread context.
    pub link: Option<Link>,
}

/// A span of a trace. Both ids are those of W3C Trace Context, and neither consists of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// Id of the trace.
    pub trace_id: [u8; 16],
    /// Id of the span.
    pub span_id: [u8; 8],
}

/// End of a wait, at which the thread may run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEnd {
    /// Start of the wait, on CLOCK_MONOTONIC. It is the time of the sample that was taken then.
    pub since_ktime_ns: u64,
    /// End of the wait, on CLOCK_MONOTONIC.
    pub ktime_ns: u64,
    /// Id of the thread, in the initial pid namespace.
    pub tid: u32,
}

/// Largest number of labels of a sample.
const LABELS_MAX: usize = 8;
const LABEL_NAME_BYTES: usize = 30;
const LABEL_VALUE_BYTES: usize = 64;
const LABEL_BYTES: usize = 2 + LABEL_NAME_BYTES + LABEL_VALUE_BYTES;
const LINK_BYTES: usize = 24;

const WAIT_END_BYTES: usize = 24;

impl WaitEnd {
    fn read(bytes: &[u8; WAIT_END_BYTES]) -> Self {
        let since_ktime_ns = u64::from_ne_bytes(take(bytes, 0));
        let ktime_ns = u64::from_ne_bytes(take(bytes, 8));
        Self { since_ktime_ns, ktime_ns, tid: u32::from_ne_bytes(take(bytes, 16)) }
    }
}

impl Link {
    /// Reads a link; `None` if an id consists of zeros.
    fn read(bytes: &[u8; LINK_BYTES]) -> Option<Self> {
        let link = Self { trace_id: take(bytes, 0), span_id: take(bytes, 16) };
        (link.trace_id != [0; 16] && link.span_id != [0; 8]).then_some(link)
    }
}

/// A record of the ring buffer.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// A sample of a CPU.
    Running(Sample<'a>),
    /// A sample at the start of a wait.
    Waiting(Sample<'a>),
    /// The end of a wait.
    WaitEnd(WaitEnd),
}

impl<'a> Record<'a> {
    /// Reads one record.
    ///
    /// # Errors
    /// Any [`RecordError`]: the caller counts the record as dropped and goes on with the next.
    pub fn read(record: &'a [u8]) -> Result<Self, RecordError> {
        if let Ok(end) = record.try_into() {
            return Ok(Self::WaitEnd(WaitEnd::read(end)));
        }
        let sample = Sample::read(record)?;
        Ok(if sample.header.chance == 0 { Self::Running(sample) } else { Self::Waiting(sample) })
    }
}

/// Reason why a record was refused. BPF and this crate are built together, so each of these is a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is shorter than its header.
    #[error("record of {bytes} bytes, the header alone has {header_bytes}")]
    TooShort {
        /// Length of the record.
        bytes: usize,
        /// Length of a header.
        header_bytes: usize,
    },
    /// The frame counts do not fit the record or the limits.
    #[error("record of {bytes} bytes with {kernel_frames} kernel frames and {user_words} words of user frames")]
    FrameCount {
        /// Length of the record.
        bytes: usize,
        /// Number of kernel frames in the header.
        kernel_frames: u16,
        /// Number of words of user frames in the header.
        user_words: u16,
    },
    /// The count of labels does not fit the record or the limit.
    #[error("record of {bytes} bytes with {labels} labels")]
    LabelCount {
        /// Length of the record.
        bytes: usize,
        /// Number of labels in the header.
        labels: u16,
    },
    /// The count of links does not fit the record or the limit, or an id of the link consists of zeros.
    #[error("record of {bytes} bytes with {links} links, or with an empty link")]
    Link {
        /// Length of the record.
        bytes: usize,
        /// Number of links in the header.
        links: u16,
    },
    /// The end of the user part has an unknown number.
    #[error("user part ends with {end}, which has no meaning")]
    UserEnd {
        /// The unknown number.
        end: u8,
    },
}

impl<'a> Sample<'a> {
    /// Reads one record of the ring buffer.
    ///
    /// # Errors
    /// Any [`RecordError`]: the caller counts the record as dropped and goes on with the next.
    pub fn read(record: &'a [u8]) -> Result<Self, RecordError> {
        let header_bytes = size_of::<SampleHeader>();
        let Some((fixed, frames)) = record.split_at_checked(header_bytes) else {
            return Err(RecordError::TooShort { bytes: record.len(), header_bytes });
        };
        let header = read_header(fixed);
        let kernel_frames = header.kernel_frames;
        let user_words = header.user_words;
        let used = (usize::from(kernel_frames) + usize::from(user_words)) * size_of::<u64>();
        let within_limits =
            usize::from(kernel_frames) <= KERNEL_FRAMES_MAX && usize::from(user_words) <= USER_WORDS_MAX;
        let error = RecordError::FrameCount { bytes: record.len(), kernel_frames, user_words };
        let (frames, labels) = frames.split_at_checked(used).filter(|_| within_limits).ok_or(error)?;
        let labels_count = usize::from(header.labels);
        let error = RecordError::LabelCount { bytes: record.len(), labels: header.labels };
        let split = labels.split_at_checked(labels_count * LABEL_BYTES);
        let (labels, links) = split.filter(|_| labels_count <= LABELS_MAX).ok_or(error)?;
        let error = RecordError::Link { bytes: record.len(), links: header.links };
        let link = match header.links {
            0 => None,
            1 => Some(links.first_chunk().and_then(Link::read).ok_or(error)?),
            _ => return Err(error),
        };
        let user_end = match header.user_end {
            0 => UserEnd::None,
            1 => UserEnd::Root,
            2 => UserEnd::Broken,
            3 => UserEnd::Truncated,
            4 => UserEnd::Compat,
            end => return Err(RecordError::UserEnd { end }),
        };
        Ok(Self { header, user_end, frames, labels, link })
    }

    /// Returns the addresses of the kernel part, leaf first. All but the leaf are return addresses.
    pub fn kernel_frames(&self) -> impl Iterator<Item = u64> + 'a {
        addresses(self.frames).take(usize::from(self.header.kernel_frames))
    }

    /// Returns the user part, leaf first. Each frame lies inside the instruction that ran or called.
    pub fn user_frames(&self) -> impl Iterator<Item = UserFrame> + 'a {
        let mut words = addresses(self.frames).skip(usize::from(self.header.kernel_frames));
        std::iter::from_fn(move || UserFrame::read(&mut words))
    }

    /// Returns names and values of the labels. Both may be truncated, and need not be text.
    pub fn labels(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        self.labels.chunks_exact(LABEL_BYTES).map(|label| {
            let name_bytes = usize::from(label[0]);
            let value_bytes = usize::from(label[1]);
            let (name, value) = label[2..].split_at(LABEL_NAME_BYTES);
            (&name[..name_bytes.min(LABEL_NAME_BYTES)], &value[..value_bytes.min(LABEL_VALUE_BYTES)])
        })
    }
}

fn addresses(frames: &[u8]) -> impl Iterator<Item = u64> + '_ {
    frames.chunks_exact(size_of::<u64>()).map(|bytes| u64::from_ne_bytes(take(bytes, 0)))
}

/// Decodes a header from `bytes`, which hold exactly one header.
fn read_header(bytes: &[u8]) -> SampleHeader {
    macro_rules! field {
        ($type:ty, $name:ident) => {
            <$type>::from_ne_bytes(take(bytes, offset_of!(SampleHeader, $name)))
        };
    }
    SampleHeader {
        ktime_ns: field!(u64, ktime_ns),
        start_boottime_ns: field!(u64, start_boottime_ns),
        exec_id: field!(u64, exec_id),
        pid: field!(u32, pid),
        tid: field!(u32, tid),
        cpu: field!(u32, cpu),
        kernel_frames: field!(u16, kernel_frames),
        user_words: field!(u16, user_words),
        user_end: field!(u8, user_end),
        kernel_thread: field!(u8, kernel_thread),
        fp_frames: field!(u16, fp_frames),
        chance: field!(u32, chance),
        executable: field!(u32, executable),
        labels: field!(u16, labels),
        links: field!(u16, links),
        comm: take(bytes, offset_of!(SampleHeader, comm)),
    }
}

/// Returns `N` bytes at `offset`, which lies within a header by construction.
fn take<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

#[cfg(test)]
mod tests;
