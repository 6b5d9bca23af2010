//! Scopes of functions, which have a function's names and its position in the source.

use super::heap::{Heap, Object, object, small};

/// Largest number of local variables of a scope.
const LOCALS_MAX: i32 = 1 << 20;
const TYPE_BITS: u32 = 15;
const CLASS_VARIABLE: u32 = 10;

/// Names and position of a function, as its scope has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) name: Option<Object>,
    /// Name that V8 made of the assignment of a function without a name.
    pub(crate) inferred: Option<Object>,
    /// Position of the function in its script.
    pub(crate) start: Option<u32>,
}

impl Scope {
    /// Reads a scope. `None` if it is damaged.
    pub(crate) fn read(heap: &Heap<'_>, scope: Object) -> Option<Self> {
        let form = &heap.layout.form.scope;
        let word = |index: u64| heap.word(scope.0.checked_add(u64::from(form.first) + 8 * index)?);
        let flags = match form.has_positions_first {
            true => word(0)? as u32,
            false => small(word(0)?)?.cast_unsigned(),
        };
        let kind = flags & TYPE_BITS;
        let locals = small(word(2)?).filter(|locals| (0..=LOCALS_MAX).contains(locals))?;
        let mut at = if form.has_positions_first { 5 } else { 3 };
        at += u64::from(form.has_module_count && kind == form.module);
        let is_hashed = form.hashed_locals.is_some_and(|from| from <= locals);
        let locals = u64::from(locals.unsigned_abs());
        at += if is_hashed { 1 + locals } else { 2 * locals };
        // Without the flag of a saved class variable, the flags after it are one lower.
        let shift = if form.has_class_variable { 0 } else { 1 };
        at += u64::from(form.has_class_variable && flags >> CLASS_VARIABLE & 1 != 0);
        at += u64::from(form.has_receiver && matches!(flags >> 7 & 3, 1 | 2));
        let mut found = Self::default();
        if flags >> (12 - shift) & 3 != 0 {
            found.name = object(word(at)?);
            at += 2;
        }
        if flags >> (14 - shift) & 1 != 0 {
            found.inferred = object(word(at)?);
            at += 1;
        }
        let start = match form.has_positions_first {
            true => Some(3),
            false => (form.with_positions >> kind & 1 != 0).then_some(at),
        };
        found.start = start.and_then(|at| u32::try_from(small(word(at)?)?).ok());
        Some(found)
    }
}
