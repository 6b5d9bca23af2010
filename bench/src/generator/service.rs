//! One service of a fleet: a recording with completed and ranked stacks, and the growth of the number of stacks.

use std::collections::{HashMap, HashSet};

use anyhow::ensure;
use proto::build_id::from_hex;
use proto::{Address, BuildId, Dictionary, Function, Line, Location, Mapping, StackHash};
use serde_json::{Value, json};

use super::donor::{Donor, by_frequency};
use super::growth::{Growth, StackKey, exponent};
use super::lanes::Lanes;
use super::mix::{INTERVAL_NS, INTERVAL_TICKS, POD_CPUS, SERVICES, WORKLOAD_NS};
use super::pod::Pod;
use super::random::Random;
use super::tree::Tree;
use crate::corpus::{Frames, Node, Recording};

/// Largest share of common stacks among a mix's unique stacks. The other stacks are rare.
const COMMON_PART: f64 = 0.6;
/// Number of bisection steps with which a calibration finds the size of the pool. Its error is then below a thousandth.
const HALVINGS: usize = 16;
/// ID of a location that is not defined yet.
const UNKNOWN: u32 = u32::MAX;

/// One service of a fleet.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) lanes: Lanes,
    tree: Tree,
    /// Stacks, as nodes of the tree, by rank.
    stacks: Vec<u32>,
    /// Hashes of the user part and the kernel part of each stack, by rank.
    hashes: Vec<(StackHash, StackHash)>,
    pub(crate) growth: Growth,
    /// Of all new stacks, the share whose leaf is new, too.
    new_leaf: f64,
    /// Name of the donor; `None` if no stack was replaced.
    filled_from: Option<String>,
    /// Share of the recorded samples that have truncated stacks.
    filled_part: f64,
}

/// Tree that is being built from a recording and a donor. The two have separate tables.
struct TreeBuilder {
    nodes: Vec<Node>,
    ids: HashMap<Node, u32>,
}

impl TreeBuilder {
    fn stack(&mut self, definer: &mut Definer<'_>, to: &mut Dictionary, stack: u32) -> anyhow::Result<u32> {
        let mut locations: Vec<u32> = definer.frames.leaf_first(stack).collect();
        let mut parent = 0;
        while let Some(location) = locations.pop() {
            let node = Node { parent, location: definer.location(to, location) };
            let next = u32::try_from(self.nodes.len())?;
            parent = *self.ids.entry(node).or_insert(next);
            if parent == next {
                self.nodes.push(node);
            }
        }
        Ok(parent)
    }
}

impl Service {
    /// Builds a service. `donor` has the donor of complete stacks, the index of the first stack that is taken from it,
    /// and the distance to the next. `target` is the number of unique stacks that `pods` pods have in 15 minutes.
    pub(crate) fn new(
        recording: &Recording,
        donor: Option<(&Donor, usize, usize)>,
        dictionary: &mut Dictionary,
        pods: usize,
        target: usize,
    ) -> anyhow::Result<Self> {
        let mut lanes = Lanes::new(recording);
        ensure!(lanes.is_complete(), "{}: too few samples; record it for longer", recording.program);
        let (nodes, stacks) = fill(recording, donor, dictionary)?;
        lanes.rows_mut().for_each(|row| row.stack = stacks[&row.stack]);
        let sequence: Vec<u32> = recording.samples.iter().map(|sample| stacks[&sample.stack]).collect();
        let (ranked, common) = rank(&sequence, (target as f64 * COMMON_PART) as usize);
        let ranks: HashMap<u32, u32> = ranked.iter().copied().zip(0..).collect();
        lanes.rows_mut().for_each(|row| row.stack = ranks[&row.stack]);
        let recorded: Vec<u32> = recording.samples.iter().map(|sample| sample.stack).collect();
        let cut = recorded.iter().filter(|&&stack| recording.frames.is_cut(stack)).count();
        let growth = Growth {
            common,
            rare: u32::try_from(ranked.len())? - common,
            pool_15m: 0.0,
            exponent: exponent(&recorded),
        };
        let mut service = Self {
            name: recording.program.clone(),
            lanes,
            tree: Tree::new(nodes, dictionary.locations.len()),
            stacks: ranked,
            hashes: Vec::new(),
            growth,
            new_leaf: new_leaf_part(recording),
            filled_from: donor.map(|(donor, ..)| donor.name.clone()).filter(|_| cut > 0),
            filled_part: cut as f64 / recorded.len() as f64,
        };
        service.calibrate(pods, target);
        Ok(service)
    }

    /// Finds the size of the pool with which `pods` pods have `target` unique stacks in 15 minutes.
    fn calibrate(&mut self, pods: usize, target: usize) {
        let mut low = 1.0_f64;
        let mut high = 64.0 * target as f64;
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            self.growth.pool_15m = middle;
            if self.unique_in_15m(pods) < target { low = middle } else { high = middle }
        }
        self.growth.pool_15m = high;
    }

    fn unique_in_15m(&self, pods: usize) -> usize {
        let mut seen = HashSet::with_hasher(foldhash::fast::FixedState::default());
        for interval in 0..WORKLOAD_NS / INTERVAL_NS {
            let variants = self.growth.variants((interval + 1) * INTERVAL_NS);
            for pod in 0..pods {
                let pod = Pod::new(0, (pod * SERVICES) as u64, 0);
                for tick in interval * INTERVAL_TICKS..(interval + 1) * INTERVAL_TICKS {
                    for cpu in 0..POD_CPUS {
                        let (row, _) = self.lanes.row(pod.start, cpu, tick);
                        let unit = pod.random(tick, cpu).unit();
                        seen.insert(self.growth.draw(row.stack, variants, unit));
                    }
                }
            }
        }
        seen.len()
    }

    /// Hashes the recorded stacks. `hash` returns the hashes of the user part and the kernel part of a stack.
    pub(crate) fn hash_stacks(&mut self, hash: impl Fn(&[u32]) -> (StackHash, StackHash)) {
        let mut locations = Vec::new();
        let mut hashes = |&stack: &u32| {
            locations.clear();
            self.tree.push_locations(stack, &mut locations);
            hash(&locations)
        };
        self.hashes = self.stacks.iter().map(&mut hashes).collect();
    }

    /// Returns the hashes of the user part and the kernel part of a recorded stack; `None` for a variant.
    pub(crate) fn hashes(&self, key: StackKey) -> Option<(StackHash, StackHash)> {
        (key.variant == 0).then(|| self.hashes[key.rank as usize])
    }

    /// Adds the locations of a stack to `out`, leaf first. Returns the distance of the stack's leaf from the recorded
    /// leaf, in bytes or lines.
    pub(crate) fn push_locations(&self, key: StackKey, out: &mut Vec<u32>) -> u64 {
        let stack = self.stacks[key.rank as usize];
        if key.variant == 0 {
            self.tree.push_locations(stack, out);
            return 0;
        }
        let mut random = Random::of([u64::from(key.rank), u64::from(key.variant)]);
        self.tree.push_variant(stack, &mut random, out);
        if random.unit() < self.new_leaf { 1 + random.below(60) as u64 } else { 0 }
    }

    /// Describes the service for the report.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "service": self.name,
            "samples_recorded": self.lanes.rows().count(),
            "stacks_recorded": self.stacks.len(),
            "stacks_common": self.growth.common,
            "pool_15m": crate::report::rounded(self.growth.pool_15m),
            "growth_exponent": crate::report::rounded(self.growth.exponent),
            "new_leaf_part": crate::report::rounded(self.new_leaf),
            "filled_from": self.filled_from,
            "filled_part": crate::report::rounded(self.filled_part),
        })
    }
}

/// Builds the tree. Also returns the node of each recorded stack, or of the stack that replaces it.
fn fill(
    recording: &Recording,
    donor: Option<(&Donor, usize, usize)>,
    dictionary: &mut Dictionary,
) -> anyhow::Result<(Vec<Node>, HashMap<u32, u32>)> {
    let frames = &recording.frames;
    let mut builder = TreeBuilder { nodes: vec![Node { parent: 0, location: 0 }], ids: HashMap::new() };
    let mut own = Definer::new(frames);
    let mut stacks = HashMap::new();
    let mut cut = 0;
    let mut lent = donor.map(|(donor, offset, step)| (Definer::new(&donor.frames), &donor.stacks, offset, step));
    for stack in by_frequency(recording.samples.iter().map(|sample| (sample.stack, 1))) {
        let node = match &mut lent {
            Some((definer, whole, offset, step)) if frames.is_cut(stack) => {
                let at = (*offset + cut * *step) % whole.len();
                cut += 1;
                builder.stack(definer, dictionary, whole[at])?
            }
            _ => builder.stack(&mut own, dictionary, stack)?,
        };
        stacks.insert(stack, node);
    }
    Ok((builder.nodes, stacks))
}

/// Returns the stacks in the order of their ranks, and the number of common stacks, which is at most `common_max`.
/// Common stacks occur more than once.
fn rank(sequence: &[u32], common_max: usize) -> (Vec<u32>, u32) {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    sequence.iter().for_each(|&stack| *counts.entry(stack).or_default() += 1);
    let mut ranked = by_frequency(sequence.iter().map(|&stack| (stack, 1)));
    let often = ranked.iter().take(common_max).take_while(|stack| counts[stack] > 1).count();
    let common: HashSet<u32> = ranked[..often].iter().copied().collect();
    ranked.truncate(often);
    let mut seen = common;
    ranked.extend(sequence.iter().copied().filter(|&stack| seen.insert(stack)));
    (ranked, often as u32)
}

/// Returns the share of new stacks whose leaf is new, too. New stacks are those that first occur in the second half of
/// the recording.
fn new_leaf_part(recording: &Recording) -> f64 {
    let leaf = |frames: &Frames, stack: u32| frames.nodes[stack as usize].location;
    let mut stacks = HashSet::new();
    let mut leaves = HashSet::new();
    let mut new = 0_u32;
    let mut with_new_leaf = 0_u32;
    for (number, sample) in recording.samples.iter().enumerate() {
        let is_new_leaf = leaves.insert(leaf(&recording.frames, sample.stack));
        if stacks.insert(sample.stack) && number >= recording.samples.len() / 2 {
            new += 1;
            with_new_leaf += u32::from(is_new_leaf);
        }
    }
    f64::from(with_new_leaf) / f64::from(new.max(1))
}

/// Defines the locations of one recording in a dictionary, and remembers their IDs.
#[derive(Debug)]
struct Definer<'a> {
    frames: &'a Frames,
    locations: Vec<u32>,
}

impl<'a> Definer<'a> {
    fn new(frames: &'a Frames) -> Self {
        Self { frames, locations: vec![UNKNOWN; frames.locations.len()] }
    }

    /// Defines a location of the recording in `to`, if it is new, and returns its ID in `to`. `to` must be the same
    /// dictionary in every call.
    fn location(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.locations[id as usize] == UNKNOWN {
            self.locations[id as usize] = define(self.frames, to, id);
        }
        self.locations[id as usize]
    }
}

fn define(frames: &Frames, to: &mut Dictionary, id: u32) -> u32 {
    let from = &frames.locations[id as usize];
    let mapping = &frames.mappings[from.mapping as usize];
    let file = to.strings.intern(&mapping.file);
    let frame_type = to.strings.intern(&from.frame_type);
    let location = if from.lines.is_empty() {
        let build_id = from_hex(&mapping.build_id).filter(|bytes| !bytes.is_empty()).map(BuildId::Gnu);
        let mapping = to.intern_mapping(Mapping { build_id, file });
        Location::Address { mapping, address: Address::Virtual(from.address), frame_type }
    } else {
        let lines = from.lines.iter().map(|&(function, line)| {
            let function = &frames.functions[function as usize];
            let name = to.strings.intern(&function.name);
            let file = to.strings.intern(&function.file);
            let function = Function { name, system_name: 0, file, start_line: function.start_line };
            Line { function: to.intern_function(function), line, column: 0 }
        });
        let lines = lines.collect();
        Location::Lines { mapping_file: file, frame_type, lines }
    };
    to.intern_location(location)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_stacks_come_first_by_frequency_and_rare_ones_by_appearance() {
        assert_eq!(rank(&[7, 5, 9, 9, 5, 9, 8], 10), (vec![9, 5, 7, 8], 2));
        assert_eq!(rank(&[7, 5, 9, 9, 5, 9, 8], 1), (vec![9, 7, 5, 8], 1));
    }
}
