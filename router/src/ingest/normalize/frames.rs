//! Frames of stacks while a message is read.

use proto::limits;

/// A frame, before its location is defined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Hash of its location: see [`proto::identity`].
    pub(crate) hash: u128,
    pub(crate) is_kernel: bool,
}

/// The frames of one stack, leaf first. Of a stack that is too deep, only the frames that are kept are held.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(super) kept: Vec<Frame>,
    /// Number of frames that were sent.
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

/// Origin of a stack: frames `[start, end)`, leaf first, of a source, which is a sample (pprof) or a stack (OTLP) of
/// the message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StackSource {
    pub(super) source: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    /// True if the stack had more frames; it then has a marker frame.
    pub(super) is_cut: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    // A few KB of compressed body held a stack of sixty million frames, which took 2 GB.
    #[test]
    fn stacks_that_are_too_deep_hold_only_the_frames_that_are_kept() {
        let mut frames = Frames::default();
        (0..limits::STACK_DEPTH_MAX * 3).for_each(|_| frames.push(Frame { hash: 1, is_kernel: false }));
        assert_eq!((frames.kept.len(), frames.depth), (limits::STACK_DEPTH_MAX, 3 * limits::STACK_DEPTH_MAX));
    }
}
