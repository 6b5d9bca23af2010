//! Frames of a stack while the stack is read.

use proto::limits;

/// A frame whose location is not defined yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Hash of the frame's location, as in [`proto::identity`].
    pub(crate) hash: u128,
    pub(crate) is_kernel: bool,
}

/// The frames of one stack, leaf first. If the stack is too deep, only the frames nearest the leaf are here.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(super) kept: Vec<Frame>,
    /// Number of frames in the message.
    pub(super) depth: usize,
}

impl Frames {
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.depth = 0;
    }

    #[inline]
    pub(crate) fn push(&mut self, frame: Frame) {
        self.depth += 1;
        if self.kept.len() < limits::STACK_DEPTH_MAX {
            self.kept.push(frame);
        }
    }
}

/// Origin of a stack: frames `[start, end)` of a source, leaf first. A source is a sample of a pprof file, or a stack
/// of an OTLP dictionary.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StackSource {
    pub(super) source: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    /// True if the stack had more frames. The truncated stack then has a marker frame.
    pub(super) is_cut: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    // A stack of sixty million frames fits in a few KB of compressed body. Such a stack once took 2 GB of memory.
    #[test]
    fn stacks_that_are_too_deep_hold_only_the_frames_that_are_kept() {
        let mut frames = Frames::default();
        (0..limits::STACK_DEPTH_MAX * 3).for_each(|_| frames.push(Frame { hash: 1, is_kernel: false }));
        assert_eq!((frames.kept.len(), frames.depth), (limits::STACK_DEPTH_MAX, 3 * limits::STACK_DEPTH_MAX));
    }
}
