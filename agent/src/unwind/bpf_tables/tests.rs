//! Reports of one file, which come more than once.

use prometheus_client::registry::Registry;
use testkit::report;

use super::slots::tests::load;
use super::*;

const KEY: FileKey = [9; 40];

impl Worker {
    fn report(&mut self, number: u32) {
        let file = File::open("/bin/sh").unwrap();
        let waiting = WaitingFile { key: KEY, number, file, parts: Vec::new(), origin: None, counted: Arc::default() };
        self.execute(Task::Unwind(waiting)).unwrap();
    }

    /// Returns the number of the file in BPF, and true if it has a table there; `None` if BPF does not know it.
    fn known(&self) -> Option<(u32, bool)> {
        let entry = self.slots.entry(&KEY)?;
        Some((u32::from_ne_bytes(*entry.first_chunk().unwrap()), FileEntry::table_of(&entry).is_some()))
    }
}

// Needs BPF.
#[test]
fn a_file_keeps_its_table_however_often_it_is_reported() {
    let test = "a_file_keeps_its_table_however_often_it_is_reported";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let status = Status::new(&mut Registry::default());
    let (runtimes, waiting) = (Runtimes::default(), Waiting::default());
    let mut worker = Worker { slots: load(), runtimes, waiting, status, epoch_ends_ns: u64::MAX };
    // As BPF does before each report.
    let met = |worker: &mut Worker, number| worker.slots.insert(KEY, &file_entry(number, None, &[]));

    met(&mut worker, 1);
    worker.report(1);
    worker.execute(Task::Forget(KEY)).unwrap();
    worker.execute(Task::Skip(KEY)).unwrap();
    assert_eq!((worker.known(), worker.waiting.len(), worker.waiting.skipped()), (Some((1, false)), 1, 0));
    met(&mut worker, 2);
    worker.report(2);
    assert_eq!(worker.waiting.len(), 1, "it waits once");
    worker.unwind_next().unwrap();
    assert_eq!((worker.known(), worker.waiting.len(), worker.slots.count()), (Some((2, true)), 0, 1));

    met(&mut worker, 3);
    worker.report(3);
    assert_eq!((worker.known(), worker.waiting.len()), (Some((2, true)), 0));
    for task in [Task::Forget(KEY), Task::Skip(KEY)] {
        met(&mut worker, 4);
        worker.execute(task).unwrap();
        assert_eq!(worker.known(), Some((2, true)));
    }
    worker.epoch_ends_ns = 0;
    worker.end_epoch().unwrap();
    assert_eq!(worker.known(), Some((2, true)));

    worker.execute(Task::ForgetAll).unwrap();
    assert_eq!((worker.known(), worker.slots.count()), (None, 0));
    met(&mut worker, 5);
    worker.execute(Task::Skip(KEY)).unwrap();
    worker.epoch_ends_ns = 0;
    worker.end_epoch().unwrap();
    assert_eq!(worker.known(), None, "BPF reports it again");
    report::bpf_test_ran(test);
}
