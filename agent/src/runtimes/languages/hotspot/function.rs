//! Functions, as BPF reports them: methods that the interpreter runs, and code.

use super::blob::Blob;
use super::layout::Layout;
use super::method::Method;
use super::scopes::scopes;
use crate::names::location::Call;
use crate::runtimes::memory::ProcessMemory;

/// Kinds of a frame, in the lowest bits of its address. The objects have addresses that are multiples of 8.
const KIND_BITS: u64 = 7;
const INTERPRETED: u64 = 1;
const CODE: u64 = 2;
/// Position of an interpreted frame that is at no bytecode.
const NO_BYTECODE: u32 = u32::MAX;
/// Bit of a position in code whose frame is not set up, or is removed already. Only the method itself can be there.
const WITHOUT_INLINED: u32 = 1 << 31;

/// Name in place of the frames of a virtual thread that are in the Java heap. BPF records them without an address.
const IN_JAVA_HEAP: &str = "[frames in the Java heap]";

/// A function of HotSpot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// A method, at any of its bytecodes.
    Method(Method),
    /// A position in code: the calls inlined there, innermost first.
    Code(Box<[Call]>),
}

impl Function {
    /// Reads the function of a frame. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(
        memory: &ProcessMemory,
        layout: &Layout,
        address: u64,
        position: u32,
        identity: u32,
    ) -> Option<Self> {
        let object = address & !KIND_BITS;
        memory.in_blocks(|| match address & KIND_BITS {
            INTERPRETED => Method::read(memory, layout, object, identity).map(Self::Method),
            CODE => code(memory, layout, object, position, identity).map(Self::Code),
            _ => None,
        })
    }

    /// True if a frame with this address has a function that is only that of its position.
    pub(crate) fn is_of_position(address: u64) -> bool {
        address & KIND_BITS == CODE
    }

    /// Returns the calls at a position, innermost first.
    pub(crate) fn calls(&self, position: u32) -> Vec<Call> {
        match self {
            Self::Method(method) => vec![method.call((position != NO_BYTECODE).then_some(position))],
            Self::Code(calls) => calls.to_vec(),
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Method(method) => method.bytes(),
            Self::Code(calls) => {
                let texts: usize = calls.iter().map(|call| call.function.len() + call.file.len()).sum();
                size_of::<Self>() + size_of_val(&**calls) + texts
            }
        }
    }
}

/// Reads the calls at a position of a blob.
fn code(memory: &ProcessMemory, layout: &Layout, address: u64, position: u32, identity: u32) -> Option<Box<[Call]>> {
    if address == 0 {
        let call = Call { function: IN_JAVA_HEAP.to_owned(), ..Call::default() };
        return Some([call].into());
    }
    let blob = Blob::read(memory, layout, address).filter(|blob| blob.identity(memory, layout) == Some(identity))?;
    if !blob.is_compiled() {
        let call = Call { function: format!("[{}]", blob.name), ..Call::default() };
        return Some([call].into());
    }
    let mut scopes = scopes(memory, layout, &blob, position & !WITHOUT_INLINED)?;
    if position & WITHOUT_INLINED != 0 {
        scopes.drain(..scopes.len().saturating_sub(1));
    }
    let call =
        |scope: &super::scopes::Scope| Some(Method::of_compiled(memory, layout, scope.method)?.call(scope.bytecode));
    let calls = scopes.iter().map(call).collect::<Option<Box<[Call]>>>()?;
    memory.forget_blocks();
    let after = Blob::read(memory, layout, address)?;
    (after == blob && after.identity(memory, layout) == Some(identity)).then_some(calls)
}

#[cfg(test)]
mod tests;
