//! Language runtimes, whose functions BPF records in addition to native frames.
//!
//! Each runtime has a folder in `languages/` and a header in `ebpf/bpf/runtimes/`. The file that has the code of a
//! runtime is recognised when its unwind table is made; HotSpot is found in a process instead. BPF then gets a
//! description of the runtime in a *slot*. Equal descriptions share a slot. If all slots are taken, the one whose
//! functions were sampled least recently gets the new description. Its id changes, so that frames and files of the old
//! description are not mistaken for those of the new one.

pub(crate) mod contexts;
pub(crate) mod function_cache;
pub(crate) mod functions;
pub(crate) mod languages;
pub(crate) mod memory;
pub(crate) mod read_limit;
pub(crate) mod reader;
mod searches;
pub(crate) mod survey;

#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod function_parts;
#[cfg(target_arch = "x86_64")]
mod thread_getter;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebpf::{HotSpotProcess, RUNTIME_GENERATIONS, RUNTIMES_MAX, Runtime};
use parking_lot::{Mutex, RwLock};

use self::contexts::Contexts;
use self::languages::Layout;
use self::languages::hotspot::process::HotSpot;
use self::searches::Searches;
use crate::process::key::ProcessKey;
use crate::process::sys::{Clock, clock_ns};

/// Largest number of files with a runtime that are known at a time. Of more files, those met first are forgotten.
const FILES_MAX: usize = 16_384;

/// The description in a slot.
#[derive(Debug)]
struct Slot {
    /// Number of the slot, plus [`RUNTIMES_MAX`] times the number of its earlier descriptions.
    id: u16,
    runtime: Runtime,
    /// `None` if it runs no functions of a language.
    layout: Option<Arc<Layout>>,
    /// True if BPF has the description.
    is_stored: bool,
    /// Time of the last use.
    used_ns: AtomicU64,
}

impl Slot {
    fn use_it(&self) {
        self.used_ns.store(clock_ns(Clock::Monotonic), Ordering::Relaxed);
    }
}

/// A file with a runtime, or with functions that have no symbol but a known name.
#[derive(Debug)]
struct KnownFile {
    /// Id of the description of its runtime; 0 if it has none.
    id: u16,
    names: Vec<NativeName>,
}

/// Name of the code at some ELF virtual addresses of a file.
type NativeName = (Range<u64>, &'static str);

#[derive(Debug, Default)]
struct Known {
    /// Slots from 1 on.
    slots: Vec<Slot>,
    /// By the number of the file. Numbers ascend in the order in which files are met.
    files: BTreeMap<u32, KnownFile>,
}

impl Known {
    fn of_id(&self, id: u16) -> Option<&Slot> {
        let slot = usize::from(id % RUNTIMES_MAX).checked_sub(1).and_then(|at| self.slots.get(at));
        slot.filter(|slot| slot.id == id)
    }

    /// Returns the slot of a description, which it gets if it has none yet.
    fn slot_of(&mut self, runtime: Runtime, layout: Option<Layout>) -> &mut Slot {
        let is_it = |slot: &Slot| slot.runtime == runtime && slot.layout.as_deref() == layout.as_ref();
        let at = self.slots.iter().position(is_it).unwrap_or_else(|| {
            let layout = layout.map(Arc::new);
            let new = |id| Slot { id, runtime, layout, is_stored: false, used_ns: AtomicU64::new(0) };
            if self.slots.len() < usize::from(RUNTIMES_MAX) - 1 {
                self.slots.push(new(self.slots.len() as u16 + 1));
                return self.slots.len() - 1;
            }
            let by_use = |(_, slot): &(usize, &Slot)| slot.used_ns.load(Ordering::Relaxed);
            let at = self.slots.iter().enumerate().min_by_key(by_use).map_or(0, |(at, _)| at);
            self.slots[at] = new((self.slots[at].id + RUNTIMES_MAX) % (RUNTIMES_MAX * RUNTIME_GENERATIONS));
            at
        });
        &mut self.slots[at]
    }
}

/// All runtimes that were recognised.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runtimes {
    known: Arc<RwLock<Known>>,
    /// Number of files that were recognised so far.
    changes: Arc<AtomicU64>,
    /// Processes with HotSpot that were found, and that BPF does not know yet.
    processes: Arc<Mutex<Vec<NewProcess>>>,
    /// True if names of Java methods have the types of their parameters.
    pub(crate) java_parameters: bool,
    /// Searches for HotSpot that run.
    pub(crate) searches: Searches,
    pub(crate) contexts: Contexts,
}

/// A process that runs HotSpot.
#[derive(Debug)]
pub(crate) struct NewProcess {
    pub(crate) key: ProcessKey,
    pub(crate) process: HotSpotProcess,
    /// Description of its HotSpot.
    pub(crate) recognised: Recognised,
}

/// A runtime that was recognised.
#[derive(Debug)]
pub(crate) struct Recognised {
    pub(crate) id: u16,
    /// The description, if BPF does not have it yet.
    pub(crate) new: Option<Runtime>,
}

impl Runtimes {
    /// Creates an empty list. `java_parameters` is true if names of Java methods have the types of their parameters.
    pub(crate) fn new(java_parameters: bool) -> Self {
        Self { java_parameters, ..Self::default() }
    }

    /// Returns a description's id, as if it had been recognised.
    #[cfg(test)]
    pub(crate) fn insert(&self, runtime: Runtime, layout: Layout) -> u16 {
        self.known.write().slot_of(runtime, Some(layout)).id
    }

    /// Recognises the runtime whose code a file has; `None` if it has none. `number` is the number that BPF gave the
    /// file.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn recognise(&self, number: u32, file: &File, path: &str) -> Option<Recognised> {
        let language = languages::recognise(file, path).map(|(runtime, layout)| (runtime, Some(layout)));
        let runtime = language.or_else(|| languages::pcre::recognise(file).map(|runtime| (runtime, None)));
        let local = languages::local_functions(file, runtime.as_ref().map(|(runtime, _)| runtime))
            .into_iter()
            .map(|local| (local.addresses, local.name));
        let names: Vec<NativeName> = local.collect();
        if runtime.is_none() && names.is_empty() {
            return None;
        }
        let mut known = self.known.write();
        let recognised = runtime.map(|(runtime, layout)| {
            let slot = known.slot_of(runtime, layout);
            slot.use_it();
            Recognised { id: slot.id, new: (!slot.is_stored).then(|| slot.runtime.clone()) }
        });
        known.files.insert(number, KnownFile { id: recognised.as_ref().map_or(0, |it| it.id), names });
        if FILES_MAX < known.files.len() {
            known.files.pop_first();
        }
        self.changes.fetch_add(1, Ordering::Release);
        recognised
    }

    /// Returns `None`: the structures of runtimes are known on x86-64 only.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn recognise(&self, _number: u32, _file: &File, _path: &str) -> Option<Recognised> {
        None
    }

    /// Forgets all files. BPF then gives them other numbers, and may give their numbers to other files.
    pub(crate) fn forget_files(&self) {
        self.known.write().files.clear();
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Adds a process that runs HotSpot.
    pub(crate) fn add_hotspot(&self, key: ProcessKey, HotSpot { layout, process }: HotSpot) {
        let mut known = self.known.write();
        let slot = known.slot_of(layout.to_bpf(), Some(Layout::HotSpot(layout)));
        slot.use_it();
        let recognised = Recognised { id: slot.id, new: (!slot.is_stored).then(|| slot.runtime.clone()) };
        self.processes.lock().push(NewProcess { key, process, recognised });
    }

    /// Returns the processes that were added since the last call.
    pub(crate) fn take_processes(&self) -> Vec<NewProcess> {
        std::mem::take(&mut *self.processes.lock())
    }

    /// Notes that BPF has the description with this id.
    pub(crate) fn stored(&self, id: u16) {
        let mut known = self.known.write();
        if let Some(slot) = known.slots.iter_mut().find(|slot| slot.id == id) {
            slot.is_stored = true;
        }
    }

    /// Returns the layout of the runtime with an id; `None` if it has none, or if its slot has another description by
    /// now.
    pub(crate) fn layout(&self, id: u16) -> Option<Arc<Layout>> {
        let known = self.known.read();
        let slot = known.of_id(id)?;
        slot.use_it();
        slot.layout.clone()
    }

    /// Returns the name of the interpreter's loop that is at an ELF virtual address of a file; `None` for other code.
    pub(crate) fn loop_at(&self, number: u32, address: u64) -> Option<&'static str> {
        let known = self.known.read();
        let slot = known.of_id(known.files.get(&number)?.id)?;
        let part = slot.runtime.loops.iter().position(|part| part.contains(&address))?;
        slot.layout.as_ref()?.loop_name(part)
    }

    /// Returns the name of the native code at an ELF virtual address of a file, if it is known without a symbol.
    pub(crate) fn native_name(&self, number: u32, address: u64) -> Option<&'static str> {
        let local = || {
            let known = self.known.read();
            let names = &known.files.get(&number)?.names;
            names.iter().find(|(addresses, _)| addresses.contains(&address)).map(|(_, name)| *name)
        };
        self.loop_at(number, address).or_else(local)
    }

    /// Returns the number of files that were recognised so far. When it changes, [`Runtimes::native_name`] may have
    /// other answers.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use ebpf::{RuntimeKind, ThreadPointer};

    use super::*;

    fn runtime(number: u64) -> (Runtime, Option<Layout>) {
        let runtime = Runtime {
            kind: RuntimeKind::Python,
            loops: [number..number + 1, 0..0],
            threads: [Some(ThreadPointer::Fixed(8)), None],
            callers: 0..0,
            extra: 0,
            offsets: [0; _],
        };
        (runtime, Some(Layout::Python(languages::python::layout::layout_of(12).unwrap())))
    }

    #[test]
    fn the_least_recently_used_slot_gets_a_new_description_and_id() {
        let mut known = Known::default();
        let mut id_of = |number: u64| {
            let (runtime, layout) = runtime(number);
            let slot = known.slot_of(runtime, layout);
            slot.used_ns.store(if number == 3 { 1 } else { 10 + number }, Ordering::Relaxed);
            slot.id
        };
        let ids: Vec<u16> = (1..u64::from(RUNTIMES_MAX)).map(&mut id_of).collect();
        assert_eq!(ids, (1..RUNTIMES_MAX).collect::<Vec<_>>());
        assert_eq!(id_of(7), 7);
        // Description 3 was used least recently.
        assert_eq!(id_of(1000), 3 + RUNTIMES_MAX);
        assert!(known.of_id(3).is_none());
        assert_eq!(known.of_id(3 + RUNTIMES_MAX).unwrap().runtime, runtime(1000).0);
    }

    #[test]
    fn a_number_has_no_names_of_the_file_that_had_it_before() {
        let runtimes = Runtimes::default();
        let names = vec![(0x10..0x20, "main")];
        runtimes.known.write().files.insert(7, KnownFile { id: 0, names });
        let changes = runtimes.changes();
        assert_eq!(runtimes.native_name(7, 0x18), Some("main"));
        runtimes.forget_files();
        assert_eq!(runtimes.native_name(7, 0x18), None);
        assert_ne!(runtimes.changes(), changes);
    }

    #[test]
    fn no_number_is_the_id_of_a_missing_description() {
        let mut known = Known::default();
        let (runtime, layout) = runtime(1);
        known.slot_of(runtime, layout);
        let found: Vec<u16> = (0..=u16::MAX).filter(|id| known.of_id(*id).is_some()).collect();
        assert_eq!(found, [1]);
    }
}
