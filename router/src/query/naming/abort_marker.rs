//! Frames that mark where the sender's unwinder stopped. The OpenTelemetry eBPF profiler sends them with the frame type
//! `abort-marker`, and with an error code instead of an address. The thousands of the code identify the runtime.

use std::fmt;

use proto::Address;

/// Frame type of the frames that mark where unwinding stopped.
pub(crate) const ABORT_MARKER: &str = "abort-marker";

/// Code of the reason why such a frame has no function. The code is for programs.
pub(crate) const UNWINDING_STOPPED: &str = "unwinding_stopped";

/// An error code of the unwinder. `Display` writes the meaning of the code and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortCode(u64);

impl AbortCode {
    /// Returns the error code that was sent instead of an address.
    pub(crate) fn of(address: Address) -> Self {
        let (Address::Virtual(code) | Address::FileOffset(code)) = address;
        Self(code)
    }
}

impl fmt::Display for AbortCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(code) = *self;
        let runtime = RUNTIMES.iter().find(|(thousands, _)| code / 1000 == *thousands).map_or("", |(_, name)| name);
        if !runtime.is_empty() {
            write!(formatter, "{runtime}: ")?;
        }
        let meaning = MEANINGS.iter().find(|(known, _)| code == *known).map(|(_, meaning)| meaning);
        write!(formatter, "{} (error {code})", meaning.unwrap_or(&"a reason that this version does not know"))
    }
}

const RUNTIMES: [(u64, &str); 9] = [
    (1, "JVM"),
    (2, "CPython"),
    (3, "Ruby"),
    (4, "native code"),
    (5, "V8"),
    (6, ".NET"),
    (7, "BEAM"),
    (8, "LuaJIT"),
    (9, "Go"),
];

const MEANINGS: [(u64, &str); 80] = [
    (1, "a state that cannot occur"),
    (2, "the stack is deeper than the limit"),
    (3, "no frame was found"),
    (4, "no memory for the frames of this CPU"),
    (5, "too many steps between runtimes"),
    (1000, "no code blob at this address"),
    (1001, "the interpreter's frame pointer is invalid"),
    (1002, "the return address was not found"),
    (1003, "the code blob does not match the stack"),
    (1004, "a link register is needed within the stack"),
    (1005, "nothing is known of this process yet"),
    (2000, "the code object cannot be read"),
    (2001, "nothing is known of this process yet"),
    (2002, "the frame object cannot be read"),
    (2003, "the current frame's address cannot be read"),
    (2004, "the thread state's address cannot be read"),
    (2005, "the thread has no interpreter state"),
    (2006, "the thread state has no readable frame"),
    (2007, "the key of the thread state cannot be read"),
    (2008, "the thread's own data was not found"),
    (3000, "nothing is known of this process yet"),
    (3001, "the VM's stack address cannot be read"),
    (3002, "the VM's stack size cannot be read"),
    (3003, "the control frame cannot be read"),
    (3004, "the environment of the frame cannot be read"),
    (3005, "the instruction sequence's body cannot be read"),
    (3006, "the instruction sequence cannot be read"),
    (3007, "the instruction sequence's size cannot be read"),
    (3008, "the thread's own data was not found"),
    (3009, "the instruction sequence is invalid"),
    (3010, "the method's definition cannot be read"),
    (3011, "the method's type cannot be read"),
    (3012, "the method's entry cannot be read"),
    (3013, "an object's flags cannot be read"),
    (3020, "the method's entry is too far up"),
    (3021, "the frame does not fit its record"),
    (3030, "the current thread cannot be read"),
    (3031, "the VM cannot be read"),
    (3032, "the object space cannot be read"),
    (3033, "the object space's flags cannot be read"),
    (3034, "native frames cannot be followed after JIT code"),
    (4000, "no unwind table for this code yet"),
    (4001, "the unwind table is not there"),
    (4002, "the unwind table of this section is not there"),
    (4003, "the unwind table is too large to search"),
    (4004, "the unwind table's entry cannot be read"),
    (4005, "the unwind table says nothing of this code"),
    (4006, "the unwind table ends the stack here"),
    (4007, "the return address cannot be read"),
    (4008, "a link register is needed within the stack"),
    (4009, "the registers at the kernel's entry cannot be read"),
    (4010, "the interrupt stack's caller cannot be read"),
    (4011, "a kernel address in a user stack"),
    (4012, "no known file is mapped at this address"),
    (4013, "the return address is 0"),
    (4014, "the return address is too low to be code"),
    (4015, "the unwind table refers to a rule that does not exist"),
    (4016, "32-bit code on a 64-bit Arm system"),
    (4017, "32-bit code on an x86-64 system"),
    (4018, "code in a mapping that cannot be unwound"),
    (4019, "nothing is mapped at this address"),
    (4020, "the mapping at this address is not executable"),
    (5000, "the frame pointer is invalid"),
    (5001, "the function object is invalid"),
    (5002, "nothing is known of this process yet"),
    (6000, "nothing is known of this process yet"),
    (6001, "the frame pointer is invalid"),
    (6002, "the code header cannot be read"),
    (6003, "the code is too large to search"),
    (7000, "nothing is known of this process yet"),
    (7001, "the address is outside of the code"),
    (7002, "the next frame was not found"),
    (7003, "the frame pointer is invalid"),
    (7004, "the index of the active code cannot be read"),
    (7005, "the table of modules cannot be read"),
    (7006, "the code is too large to search"),
    (8000, "nothing is known of this process yet"),
    (9000, "the runtime's layout is not known"),
    (9001, "the caller of C code was not found"),
    (9002, "the goroutine cannot be read"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_whose_frames_could_not_be_followed_and_why() {
        for (code, expected) in [
            (4018, "native code: code in a mapping that cannot be unwound (error 4018)"),
            (2, "the stack is deeper than the limit (error 2)"),
            (2001, "CPython: nothing is known of this process yet (error 2001)"),
            (7005, "BEAM: the table of modules cannot be read (error 7005)"),
            (4999, "native code: a reason that this version does not know (error 4999)"),
            (u64::MAX, "a reason that this version does not know (error 18446744073709551615)"),
        ] {
            assert_eq!(AbortCode::of(Address::Virtual(code)).to_string(), expected);
        }
        assert!(MEANINGS.is_sorted_by_key(|(code, _)| *code));
    }
}
