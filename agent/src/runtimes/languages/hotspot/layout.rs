//! Layout of HotSpot's structures, from its own tables.
//!
//! Fields came and went over the versions, so each is found by the first of several names that exists.

use ebpf::{LOOP_PARTS, RUNTIME_OFFSETS, Runtime, RuntimeKind, THREAD_POINTERS};

use super::fields::Integer;
use super::vm_structs::VmStructs;
use crate::runtimes::memory::ProcessMemory;

/// Largest offset of a field, and largest size of a structure, that is plausible.
const OFFSET_MAX: u16 = 2048;
/// Largest number of bytes from the start of a block to the end of the fields of a compiled method: the size of BPF's
/// copy.
const BLOCK_BYTES_MAX: u16 = 512;

/// Bits of the form, as in `ebpf/bpf/runtimes/hotspot.h`.
const KIND_FORM: u16 = 1;
const CODE_OFFSET_FORM: u16 = 2;
const SHORT_COMPLETE_FORM: u16 = 4;
const DEOPT_OFFSET_FORM: u16 = 8;
const COUNT_SECOND_FORM: u16 = 16;

/// A place in a structure that has an address, or the distance of that address from the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The field is the address.
    Address(u16),
    /// The field is the distance.
    Offset(Integer),
}

impl Place {
    fn offset(self) -> u16 {
        match self {
            Self::Address(offset) | Self::Offset(Integer { offset, .. }) => offset,
        }
    }
}

/// Layout of a block of a code heap, and of the blob in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlobLayout {
    /// Size of the block's header, which precedes the blob.
    pub(crate) block_bytes: u16,
    /// Offset of the byte in the block's header that is 1 if the block is in use.
    pub(crate) used: u16,
    pub(crate) name: u16,
    pub(crate) size: u16,
    pub(crate) frame_size: u16,
    pub(crate) frame_complete: Integer,
    /// First instruction.
    pub(crate) code: Place,
    /// Offset of the byte with the kind of the blob; `None` in versions whose blobs have virtual functions.
    pub(crate) kind: Option<u16>,
}

/// Layout of a compiled method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CompiledLayout {
    pub(crate) method: u16,
    pub(crate) compile_id: u16,
    original_pc: u16,
    deopt: Place,
    deopt_handle: Option<u16>,
    /// Structure outside of the blob that has the debug information.
    pub(crate) immutable_data: Option<u16>,
    /// Positions with debug information, relative to the blob or that structure.
    pub(crate) pcs: Integer,
    pub(crate) pcs_end: Integer,
    pub(crate) scopes: Place,
    pub(crate) metadata: Metadata,
}

/// Place of the methods that a compiled method refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Metadata {
    /// Behind this pointer, after as many bytes as the number says.
    Mutable(u16, Integer),
    /// At an offset from the blob, or from its data if there is such an offset.
    InBlob(Integer, Option<Integer>),
}

/// Layout of a method and its constant part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MethodLayout {
    pub(crate) constant: u16,
    pub(crate) pool: u16,
    /// Size of the constant part with all its tables, in words.
    pub(crate) words: u16,
    pub(crate) code_size: u16,
    pub(crate) flags: Integer,
    pub(crate) name: u16,
    /// Number of the entry with the types of the parameters.
    pub(crate) signature: u16,
    /// True if the name is to have the types of the parameters.
    pub(crate) has_parameters: bool,
    /// Size of the constant part without tables. The bytecodes follow it.
    pub(crate) bytes: u16,
    /// Size of a constant pool without its entries, which follow it.
    pub(crate) pool_bytes: u16,
    pub(crate) pool_length: u16,
    pub(crate) holder: u16,
    pub(crate) class_name: u16,
    /// Number of the entry with the name of the source file.
    pub(crate) source: Source,
    pub(crate) text_length: TextLength,
    pub(crate) text: u16,
    /// True if the number of references to a text is in its bytes 2 and 3, and false if it is in its first two bytes.
    pub(crate) is_count_second: bool,
}

/// Structure that has the number of the source file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Pool(u16),
    Class(u16),
}

/// Place of the length of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TextLength {
    Short(u16),
    /// In the upper half of an int.
    UpperHalf(u16),
}

/// Layout of HotSpot's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) blob: BlobLayout,
    pub(crate) compiled: CompiledLayout,
    pub(crate) method: MethodLayout,
    /// Distance from the frame pointer down to the address of the bytecode, in a frame of the interpreter.
    bytecode: u16,
    /// In a thread: the address at which an exception or a safepoint stopped it.
    saved_pc: u16,
    /// Major version of Java.
    pub(crate) version: u32,
    /// Lowest value of a byte in compressed numbers.
    pub(crate) lowest_byte: u8,
}

impl Layout {
    /// Finds the layout; `None` if this is no version whose structures are known.
    pub(crate) fn of(vm: &VmStructs, version: u32) -> Option<Self> {
        // The offset of the first field tells whether the tables are filled in.
        let layout = Self {
            blob: blob(vm)?,
            compiled: compiled(vm)?,
            method: method(vm)?,
            bytecode: if version == 8 { 56 } else { 64 },
            saved_pc: vm.offset("JavaThread::_saved_exception_pc")?,
            version,
            lowest_byte: u8::from(20 <= version),
        };
        let is_plausible = layout.method.constant == 8 && layout.offsets().iter().all(|offset| *offset <= OFFSET_MAX);
        let end = layout.blob.block_bytes.checked_add(layout.compiled.end())?;
        (is_plausible && end <= BLOCK_BYTES_MAX).then_some(layout)
    }

    /// Returns the description for BPF.
    pub(crate) fn to_bpf(self) -> Runtime {
        Runtime {
            kind: RuntimeKind::HotSpot,
            loops: [const { 0..0 }; LOOP_PARTS],
            threads: [None; THREAD_POINTERS],
            offsets: self.offsets(),
            callers: 0..0,
            extra: 0,
        }
    }

    /// Returns the offsets in the order of `enum hotspot_offset`.
    fn offsets(&self) -> [u16; RUNTIME_OFFSETS] {
        let Self { blob, compiled, method, .. } = self;
        let form = [
            (blob.kind.is_some(), KIND_FORM),
            (matches!(blob.code, Place::Offset(_)), CODE_OFFSET_FORM),
            (blob.frame_complete.bytes == 2, SHORT_COMPLETE_FORM),
            (matches!(compiled.deopt, Place::Offset(_)), DEOPT_OFFSET_FORM),
            (method.is_count_second, COUNT_SECOND_FORM),
        ];
        [
            blob.block_bytes,
            blob.used,
            blob.size,
            blob.frame_size,
            blob.frame_complete.offset,
            blob.code.offset(),
            blob.kind.unwrap_or_default(),
            blob.name,
            compiled.method,
            compiled.deopt.offset(),
            compiled.deopt_handle.unwrap_or_default(),
            compiled.original_pc,
            compiled.compile_id,
            compiled.end(),
            method.constant,
            method.pool,
            method.code_size,
            method.bytes,
            method.holder,
            method.class_name,
            self.bytecode,
            self.saved_pc,
            form.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum(),
            0,
        ]
    }
}

impl CompiledLayout {
    /// Returns the end of the fields that BPF reads.
    fn end(&self) -> u16 {
        let words = [self.method, self.deopt.offset(), self.deopt_handle.unwrap_or_default()].map(|offset| offset + 8);
        words.into_iter().chain([self.original_pc + 4, self.compile_id + 4]).max().unwrap_or_default()
    }
}

fn blob(vm: &VmStructs) -> Option<BlobLayout> {
    let code = match vm.offset("CodeBlob::_code_begin") {
        Some(offset) => Place::Address(offset),
        None => Place::Offset(four_bytes(vm.integer("CodeBlob::_code_offset")?)?),
    };
    Some(BlobLayout {
        block_bytes: vm.size("HeapBlock")?,
        used: vm.offset("HeapBlock::Header::_used")?,
        name: vm.offset("CodeBlob::_name")?,
        size: vm.int("CodeBlob::_size")?,
        frame_size: vm.int("CodeBlob::_frame_size")?,
        frame_complete: vm
            .integer("CodeBlob::_frame_complete_offset")
            .filter(|complete| complete.is_signed && (complete.bytes == 2 || complete.bytes == 4))?,
        code,
        kind: vm.offset("CodeBlob::_kind"),
    })
}

fn four_bytes(integer: Integer) -> Option<Integer> {
    (integer.bytes == 4).then_some(integer)
}

fn compiled(vm: &VmStructs) -> Option<CompiledLayout> {
    let first_int = |names: &[&str]| names.iter().find_map(|name| vm.integer(name)).and_then(four_bytes);
    let (deopt, deopt_handle) = match vm.offset("CompiledMethod::_deopt_handler_begin") {
        Some(offset) => (Place::Address(offset), vm.offset("CompiledMethod::_deopt_mh_handler_begin")),
        None => {
            let names = [
                "nmethod::_deoptimize_offset",
                "nmethod::_deopt_handler_offset",
                "nmethod::_deopt_handler_entry_offset",
            ];
            let handle = first_int(&["nmethod::_deoptimize_mh_offset", "nmethod::_deopt_mh_handler_offset"]);
            (Place::Offset(first_int(&names)?), handle.map(|handle| handle.offset))
        }
    };
    let immutable_data = vm.offset("nmethod::_immutable_data");
    let pcs_end =
        if immutable_data.is_some() { "nmethod::_scopes_data_offset" } else { "nmethod::_dependencies_offset" };
    let scopes = match vm.offset("CompiledMethod::_scopes_data_begin") {
        Some(offset) => Place::Address(offset),
        None => Place::Offset(vm.integer("nmethod::_scopes_data_offset")?),
    };
    let metadata = match (vm.offset("CodeBlob::_mutable_data"), vm.integer("CodeBlob::_relocation_size")) {
        (Some(mutable), Some(relocations)) => Metadata::Mutable(mutable, relocations),
        _ => {
            let offset = vm.integer("nmethod::_metadata_offset")?;
            // Two bytes are not enough for an offset from the blob.
            let data = if offset.bytes == 2 { Some(vm.integer("CodeBlob::_data_offset")?) } else { None };
            Metadata::InBlob(offset, data)
        }
    };
    Some(CompiledLayout {
        method: vm.offset("nmethod::_method").or_else(|| vm.offset("CompiledMethod::_method"))?,
        compile_id: vm.int("nmethod::_compile_id")?,
        original_pc: vm.int("nmethod::_orig_pc_offset")?,
        deopt,
        deopt_handle,
        immutable_data,
        pcs: vm.integer("nmethod::_scopes_pcs_offset")?,
        pcs_end: vm.integer(pcs_end)?,
        scopes,
        metadata,
    })
}

fn method(vm: &VmStructs) -> Option<MethodLayout> {
    let source = match vm.offset("ConstantPool::_source_file_name_index") {
        Some(offset) => Source::Pool(offset),
        None => Source::Class(vm.offset("InstanceKlass::_source_file_name_index")?),
    };
    let text_length = match vm.offset("Symbol::_length") {
        Some(offset) => TextLength::Short(offset),
        None => TextLength::UpperHalf(vm.offset("Symbol::_length_and_refcount")?),
    };
    let flags = vm.integer("ConstMethod::_flags._flags").or_else(|| vm.integer("ConstMethod::_flags"))?;
    Some(MethodLayout {
        constant: vm.offset("Method::_constMethod")?,
        pool: vm.offset("ConstMethod::_constants")?,
        words: vm.int("ConstMethod::_constMethod_size")?,
        code_size: vm.offset("ConstMethod::_code_size")?,
        flags,
        name: vm.offset("ConstMethod::_name_index")?,
        signature: vm.offset("ConstMethod::_signature_index")?,
        has_parameters: false,
        bytes: vm.size("ConstMethod")?,
        pool_bytes: vm.size("ConstantPool")?,
        pool_length: vm.int("ConstantPool::_length")?,
        holder: vm.offset("ConstantPool::_pool_holder")?,
        class_name: vm.offset("Klass::_name")?,
        source,
        text_length,
        text: vm.offset("Symbol::_body")?,
        is_count_second: text_length == TextLength::Short(0),
    })
}

/// Returns the major version of Java; `None` if it has none.
pub(crate) fn version(memory: &ProcessMemory, vm: &VmStructs) -> Option<u32> {
    // JDK 8 has another number of its own.
    if vm.address("CodeCache::_heap").is_some() {
        return Some(8);
    }
    let names = ["Abstract_VM_Version::_vm_major_version", "VM_Version::_vm_major_version"];
    let number = names.iter().find_map(|name| vm.static_int(memory, name));
    number.map_or(Some(9), |number| u32::try_from(number).ok().filter(|number| (9..100).contains(number)))
}

#[cfg(test)]
pub(super) mod tests;
