//! Functions of Ruby: iseqs, and methods that are written in C.
//!
//! BPF records a method in C (`push_ruby_method` in `ebpf/bpf/runtimes/ruby.h`) with the address of its entry, and with
//! the address at which the file with Ruby is loaded. Pages have 4096 bytes, and entries are at multiples of 8:
//!
//! | address, bit 47 | address, bits 3 to 46 | address, bits 0 to 2 | position |
//! | --- | --- | --- | --- |
//! | 1 | those of the entry | bits 44 to 46 of the load address | its bits 12 to 43 |

use super::iseq::Iseq;
use super::layout::Layout;
use super::method::Method;
use crate::names::location::Call;
use crate::runtimes::memory::ProcessMemory;

const IS_METHOD: u64 = 1 << 47;
const LOAD_BITS: u64 = 7;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Iseq(Iseq),
    Method(Method),
}

impl Function {
    /// True if the position in a frame of the function is part of its address.
    pub(crate) fn is_of_position(address: u64) -> bool {
        address & IS_METHOD != 0
    }

    /// Reads the function of a frame. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(
        memory: &ProcessMemory,
        layout: &Layout,
        (address, position, identity): (u64, u32, u32),
    ) -> Option<Self> {
        if !Self::is_of_position(address) {
            return Iseq::read(memory, layout, address, identity).map(Self::Iseq);
        }
        let load = (address & LOAD_BITS) << 44 | u64::from(position) << 12;
        let entry = address & !(IS_METHOD | LOAD_BITS);
        Method::read(memory, layout, (entry, load), identity).map(Self::Method)
    }

    /// Returns the function, and the line at a position.
    pub(crate) fn call(&self, position: u32) -> Call {
        match self {
            Self::Iseq(iseq) => iseq.call(position),
            Self::Method(method) => method.call(),
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Iseq(iseq) => iseq.bytes(),
            Self::Method(method) => method.bytes(),
        }
    }
}
