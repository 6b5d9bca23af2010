//! Frames of interpreters: the native functions that run the functions of a language. A reader can fold them away, so
//! that a stack has the functions of the language only, and the values of folded frames are those of their callers.

use crate::query::naming::frame::FrameTable;

/// Functions that run the functions of a language in a loop: CPython, PHP, Ruby, Perl.
const LOOPS: [&str; 8] = [
    "_PyEval_EvalFrameDefault",
    "_PyEval_EvalFrameDefault.cold",
    "PyEval_EvalFrameEx",
    "execute_ex",
    "rb_vm_exec",
    "vm_exec_core",
    "Perl_runops_standard",
    "Perl_runops_debug",
];

/// Beginning of the names of V8's own functions.
const V8_BUILTINS: &str = "Builtins_";

/// Returns, for each frame of a table, whether it is a frame of an interpreter.
pub(crate) fn is_interpreter(table: &FrameTable) -> Vec<bool> {
    let is_one = |frame: u32| {
        table.key(frame).is_some_and(|key| {
            let name = table.text(key.name);
            table.text(key.frame_type) == "native" && (LOOPS.contains(&name) || name.starts_with(V8_BUILTINS))
        })
    };
    (0..u32::try_from(table.len()).unwrap_or(u32::MAX)).map(is_one).collect()
}
