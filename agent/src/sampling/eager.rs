//! Programs that free functions before their names are read, and records that wait for the samples of these programs.

use std::collections::HashMap;

use ebpf::Record;
use foldhash::fast::RandomState;

/// Largest number of programs whose samples come first.
const PROGRAMS_MAX: usize = 1024;
/// Largest number of bytes of the records that wait.
const RECORDS_BYTES_MAX: usize = 256 << 10;
/// Number of intervals for which a program is eager after a function was gone: one minute.
const INTERVALS: u32 = 12;

/// Programs whose functions were gone lately when they were read.
#[derive(Debug, Default)]
pub(super) struct EagerPrograms {
    /// The interval in which a function of each program was gone last, by process id.
    gone: HashMap<u32, u32, RandomState>,
    interval: u32,
}

impl EagerPrograms {
    /// Adds a program of which a function was gone.
    pub(super) fn insert(&mut self, pid: u32) {
        if self.gone.len() < PROGRAMS_MAX || self.gone.contains_key(&pid) {
            self.gone.insert(pid, self.interval);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }

    /// True if a record is a sample of such a program. Records of waits are not urgent, because their order counts.
    pub(super) fn is_urgent(&self, record: &[u8]) -> bool {
        let is_eager = |pid: u32| self.gone.contains_key(&pid);
        matches!(Record::read(record), Ok(Record::Running(sample)) if is_eager(sample.header.pid))
    }

    /// Ends an interval, and forgets programs of which no function was gone for a minute.
    pub(super) fn end_interval(&mut self) {
        self.interval = self.interval.wrapping_add(1);
        let interval = self.interval;
        self.gone.retain(|_, gone| interval.wrapping_sub(*gone) < INTERVALS);
    }
}

/// Copies of records, in their order.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    /// End of each record in `bytes`.
    ends: Vec<usize>,
}

impl Records {
    /// True if one more record keeps the limit of memory, or if it is the first one.
    pub(super) fn fits(&self, record: &[u8]) -> bool {
        self.ends.is_empty() || self.bytes.len() + record.len() <= RECORDS_BYTES_MAX
    }

    pub(super) fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    /// Passes all records to `each`, and removes them.
    pub(super) fn take(&mut self, mut each: impl FnMut(&[u8])) {
        let mut start = 0;
        for end in self.ends.drain(..) {
            each(&self.bytes[start..end]);
            start = end;
        }
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::test_record::TestRecord;

    fn sample(pid: u32) -> Vec<u8> {
        TestRecord { pid, user: &[1, 2], ..TestRecord::default() }.bytes()
    }

    #[test]
    fn samples_of_a_program_are_urgent_for_a_minute_after_a_function_was_gone() {
        let mut programs = EagerPrograms::default();
        let pid = std::process::id();
        assert!(programs.is_empty() && !programs.is_urgent(&sample(pid)));
        programs.insert(pid);
        assert!(programs.is_urgent(&sample(pid)) && !programs.is_urgent(&sample(1)));
        assert!(!programs.is_urgent(&sample(pid)[..20]), "a malformed record");
        (1..INTERVALS).for_each(|_| programs.end_interval());
        assert!(programs.is_urgent(&sample(pid)));
        programs.insert(pid);
        (1..INTERVALS).for_each(|_| programs.end_interval());
        assert!(programs.is_urgent(&sample(pid)));
        programs.end_interval();
        assert!(programs.is_empty());
        (0..2 * PROGRAMS_MAX as u32).for_each(|pid| programs.insert(pid));
        assert_eq!(programs.gone.len(), PROGRAMS_MAX);
        // A known program stays eager, also if there are too many.
        (1..INTERVALS).for_each(|_| programs.end_interval());
        programs.insert(0);
        programs.end_interval();
        assert_eq!(programs.gone.into_keys().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn records_are_taken_once_in_their_order_and_their_memory_is_limited() {
        let mut records = Records::default();
        for round in 0..3_u8 {
            let all: Vec<Vec<u8>> = (0..5).map(|number| vec![number + round; usize::from(number)]).collect();
            all.iter().for_each(|record| records.push(record));
            let mut taken = Vec::new();
            records.take(|record| taken.push(record.to_vec()));
            assert_eq!(taken, all);
        }
        let large = vec![0; RECORDS_BYTES_MAX + 1];
        assert!(records.fits(&large));
        records.push(&[1]);
        assert!(!records.fits(&large) && records.fits(&large[2..]) && !records.fits(&large[1..]));
    }
}
