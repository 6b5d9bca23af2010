//! Splits batches into parts that each fit into a log entry, and removes samples that are too old.

use proto::{Batch, BatchId, Importer, Samples, SeriesSamples, limits};
use xxhash_rust::xxh3::xxh3_128;

/// Upper bound of the number of bytes that an entry adds to its encoded batch: the time, and the tag and the length of
/// the command.
const ENTRY_OVERHEAD_BYTES: usize = 32;

/// Error of a batch that cannot be split, because one sample with its definitions is too large for an entry.
#[derive(Debug, thiserror::Error)]
#[error("one sample with its definitions takes up to {bytes} bytes, an entry holds {}", limits::ENTRY_BYTES_MAX)]
pub(super) struct SampleTooLarge {
    bytes: usize,
}

fn fits(bytes: usize) -> bool {
    bytes + ENTRY_OVERHEAD_BYTES <= limits::ENTRY_BYTES_MAX
}

/// Returns true if a batch certainly fits into one entry, by an upper bound that needs no encoding. Nearly every batch
/// is small; [`split`] encodes the others to find their sizes.
pub(super) fn is_small(batch: &Batch) -> bool {
    fits(batch.encoded_len_max())
}

/// Splits a batch into parts that fit into one entry each. Nearly always, the only part is the batch itself.
///
/// Each part has an id of its own. If a batch is retried after some of its parts were acknowledged, each part is still
/// stored once. The split depends on the batch alone and not on the shard's definitions, so a retry is split in the
/// same way.
///
/// # Errors
/// One sample with its definitions is too large for an entry.
pub(super) fn split(batch: Batch) -> Result<Vec<Batch>, SampleTooLarge> {
    let bytes = batch.logged_len_max();
    if fits(bytes) {
        return Ok(vec![batch]);
    }
    let mut parts = Vec::new();
    halve(batch, bytes, &mut parts)?;
    Ok(parts)
}

/// Splits a batch in halves until each half fits into an entry. `bytes` is the size of the whole batch in the log,
/// which is too large for an entry.
fn halve(batch: Batch, bytes: usize, parts: &mut Vec<Batch>) -> Result<(), SampleTooLarge> {
    let samples: usize = batch.series.iter().map(|series| series.samples.len()).sum();
    if samples < 2 {
        return Err(SampleTooLarge { bytes });
    }
    for (side, from, to) in [(0, 0, samples / 2), (1, samples / 2, samples)] {
        let half = slice(&batch, side, from, to);
        let bytes = half.logged_len_max();
        if fits(bytes) {
            parts.push(half);
        } else {
            halve(half, bytes, parts)?;
        }
    }
    Ok(())
}

/// Returns one half of a batch: the samples with the numbers `[from, to)`, and the definitions that they need. The
/// numbers continue from series to series. `side` is 0 for the first half and 1 for the second, and distinguishes the
/// IDs of the halves.
fn slice(batch: &Batch, side: u8, from: usize, to: usize) -> Batch {
    let mut i = 0;
    let inside = |_time_ns| {
        i += 1;
        (from..to).contains(&(i - 1))
    };
    Batch { id: batch.id.map(|id| part_id(id, side)), ..pick(batch, inside) }
}

/// Removes the samples before a time from a part. Returns the rest, and the number of removed samples. Batches are
/// split before old samples are removed, so that the split does not depend on the time of a retry.
pub(super) fn without_older(part: Batch, before_ns: i64) -> (Batch, u64) {
    let times = part.series.iter().flat_map(|series| &series.samples.times_ns);
    let older = times.filter(|&&time_ns| time_ns < before_ns).count() as u64;
    if older == 0 {
        return (part, 0);
    }
    (pick(&part, |time_ns| time_ns >= before_ns), older)
}

/// Returns a batch of the samples for which `is_wanted` returns true, with their definitions. `is_wanted` is called
/// once for each sample, in order, with the time of the sample.
fn pick(batch: &Batch, mut is_wanted: impl FnMut(i64) -> bool) -> Batch {
    let mut part = Batch {
        tenant: batch.tenant.clone(),
        id: batch.id,
        retention_class: batch.retention_class,
        dictionary: proto::Dictionary::default(),
        series: Vec::new(),
    };
    let mut importer = Importer::new(&batch.dictionary);
    for series in &batch.series {
        let all = &series.samples;
        let mut samples = Samples::default();
        for i in 0..all.len() {
            if is_wanted(all.times_ns[i]) {
                let pair = importer.pair(&mut part.dictionary, all.pairs[i]);
                let set = importer.attributes(&mut part.dictionary, all.attribute_sets[i]);
                samples.push(all.times_ns[i], pair, all.values[i], set);
            }
        }
        if !samples.is_empty() {
            let labels = series.labels.clone();
            part.series.push(SeriesSamples { fingerprint: series.fingerprint, labels, samples });
        }
    }
    part
}

fn part_id(whole: BatchId, side: u8) -> BatchId {
    let mut key = whole.0.to_be_bytes().to_vec();
    key.push(side);
    BatchId(xxh3_128(&key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;
    use proto::dictionary::stack_hash;
    use proto::{Command, Fingerprint, Label, LabelSet, Line, Location, StackPair, TenantId, Tier};

    use super::*;
    use crate::consensus::Proposal;

    /// Returns the entry of a proposal, decoded from its bytes.
    fn decode(proposal: Proposal, proposed_at_ns: u64) -> proto::Entry {
        let payload = proposal.at(proposed_at_ns);
        proto::Entry::from_wire(proto::wire::Entry::decode(payload.encoded().unwrap()).unwrap()).unwrap()
    }

    /// Returns a batch of `samples` samples in two series. Each sample has its own stack, with a function name of
    /// `name_bytes` bytes.
    fn batch(samples: usize, name_bytes: usize) -> Batch {
        let mut dictionary = proto::Dictionary::default();
        let mut series: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|service| {
                let labels = LabelSet::new(vec![Label::new("service_name", service)]);
                let fingerprint = labels.fingerprint(&TenantId::default_tenant());
                SeriesSamples { fingerprint, labels: Some(labels), samples: Samples::default() }
            })
            .collect();
        for i in 0..samples {
            let name = dictionary.strings.intern(&format!("{i}{}", "x".repeat(name_bytes)));
            let function = proto::Function { name, system_name: 0, file: 0, start_line: 0 };
            let lines = [Line { function: dictionary.intern_function(function), line: 1, column: 0 }].into();
            let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
            let hash = stack_hash(&[dictionary.location_hash(location)]);
            let user = dictionary.intern_stack(hash, Some(&[location]));
            let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
            let set = dictionary.intern_attributes(Vec::new());
            series[i * 2 / samples].samples.push(i as i64, pair, 1, set);
        }
        Batch { tenant: TenantId::default_tenant(), id: Some(BatchId(5)), retention_class: 0, dictionary, series }
    }

    /// Returns the series, the time and the function name of every sample.
    fn contents(batch: &Batch) -> Vec<(Fingerprint, i64, String)> {
        let name = |pair: u32| {
            let pair = batch.dictionary.pairs[pair as usize];
            let location = batch.dictionary.stack(pair.user)[0];
            let Location::Lines { lines, .. } = &batch.dictionary.locations[location as usize] else { unreachable!() };
            let function = batch.dictionary.functions[lines[0].function as usize];
            batch.dictionary.strings.get(function.name).to_owned()
        };
        let of = |series: &SeriesSamples| {
            let samples = &series.samples;
            (0..samples.len())
                .map(|i| (series.fingerprint, samples.times_ns[i], name(samples.pairs[i])))
                .collect::<Vec<_>>()
        };
        batch.series.iter().flat_map(of).collect()
    }

    #[test]
    fn an_entry_is_decoded_with_the_time_that_was_set_last() {
        // The entry of the larger batch is compressed.
        for name_bytes in [10, 1000] {
            let batch = batch(3, name_bytes);
            let entry = decode(Proposal::append(Arc::new(batch.clone())), 77);
            assert_eq!(entry.proposed_at_ns, 77);
            let Command::Append(read) = entry.command else { panic!() };
            assert_eq!(contents(&read), contents(&batch));
        }
        let expire = decode(Proposal::expire(Tier::Hour, 3, -5), 78);
        assert!(matches!(expire.command, Command::Expire { tier: Tier::Hour, retention_class: 3, before_ns: -5 }));
    }

    #[test]
    fn a_batch_that_fits_stays_whole_and_keeps_its_id() {
        let parts = split(batch(100, 100)).unwrap();
        assert_eq!((parts.len(), parts[0].id), (1, Some(BatchId(5))));
    }

    #[test]
    fn a_large_batch_splits_into_parts_with_every_sample_once() {
        let whole = batch(1000, 50_000);
        let parts = split(whole.clone()).unwrap();
        assert!(parts.len() >= 4, "{}", parts.len());
        for part in &parts {
            assert!(Proposal::append(Arc::new(part.clone())).at(0).encoded_len() <= limits::ENTRY_BYTES_MAX);
        }
        assert_eq!(parts.iter().flat_map(contents).collect::<Vec<_>>(), contents(&whole));
    }

    #[test]
    fn parts_have_distinct_ids_and_a_retry_has_the_same_ids() {
        let ids = || split(batch(1000, 50_000)).unwrap().iter().map(|part| part.id.unwrap()).collect::<Vec<_>>();
        let distinct: std::collections::BTreeSet<_> = ids().into_iter().collect();
        assert_eq!(distinct.len(), ids().len());
        assert_eq!(ids(), ids());
    }

    #[test]
    fn samples_that_are_too_old_are_dropped_with_their_definitions() {
        let whole = batch(100, 10);
        let (kept, older) = without_older(whole.clone(), 60);
        assert_eq!((older, kept.id), (60, Some(BatchId(5))));
        assert_eq!(contents(&kept), contents(&whole)[60..]);
        assert_eq!((kept.series.len(), kept.dictionary.functions.len()), (1, 40));
        assert_eq!(without_older(whole.clone(), 0).1, 0);
        assert!(without_older(whole, 100).0.series.is_empty());
    }

    #[test]
    fn a_sample_that_fits_into_no_entry_is_refused() {
        let error = split(batch(1, limits::ENTRY_BYTES_MAX)).unwrap_err();
        assert!(error.bytes > limits::ENTRY_BYTES_MAX, "{error}");
    }
}
