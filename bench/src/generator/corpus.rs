//! The stacks of all services: unique, about 25 deep, with shared prefixes, over one table of locations.
//!
//! Each service has a call graph. A stack follows an earlier stack of the service from the root to some depth, then walks the
//! graph, so stacks form a tree. A fifth of them go on into the kernel.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::names::{KERNEL_FUNCTIONS, Language, SERVICE_KINDS};
use super::random::Random;
use super::{Mix, SERVICES};

/// Frames of the program; the kernel's come on top.
const DEPTH_MIN: usize = 6;
const DEPTH_SPREAD: usize = 37;
/// Calls out of one function.
const CALLEES: usize = 4;
const LIBC_ADDRESSES: usize = 150;

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) file: String,
    /// Hex; none: the kernel.
    pub(crate) build_id: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) start_line: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    pub(crate) mapping: u32,
    pub(crate) address: u64,
    /// Function and line; none: only the address is known.
    pub(crate) line: Option<(u32, i64)>,
    pub(crate) frame_type: &'static str,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// Into [`Corpus::stacks`].
    pub(crate) stacks: Range<usize>,
}

/// Everything that samples refer to.
#[derive(Debug, Default)]
pub(crate) struct Corpus {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) functions: Vec<Function>,
    pub(crate) locations: Vec<Location>,
    /// Leaf first.
    pub(crate) stacks: Vec<Vec<u32>>,
    pub(crate) services: Vec<Service>,
}

impl Corpus {
    /// The stacks of a mix; the same for the same seed.
    pub(crate) fn new(mix: Mix, seed: u64) -> Self {
        let mut corpus = Self::default();
        let shared = Shared::new(&mut corpus, seed);
        for (number, (name, language)) in SERVICE_KINDS.into_iter().enumerate().take(SERVICES) {
            // Streams 0 and 1 are the shared libraries' and the samples'.
            let random = Random::new(seed, 2 + number as u64);
            let graph = CallGraph::new(&mut corpus, mix, name, language, random);
            let start = corpus.stacks.len();
            graph.add_stacks(&mut corpus, &shared, mix.service_stacks());
            corpus.services.push(Service { name, stacks: start..corpus.stacks.len() });
        }
        corpus
    }

    fn add_mapping(&mut self, file: &str, random: Option<&mut Random>) -> u32 {
        let build_id = random.map(|random| {
            format!("{:016x}{:016x}{:08x}", random.next_u64(), random.next_u64(), random.next_u64() >> 32)
        });
        self.mappings.push(Mapping { file: file.to_owned(), build_id });
        (self.mappings.len() - 1) as u32
    }

    fn add_location(&mut self, location: Location) -> u32 {
        self.locations.push(location);
        (self.locations.len() - 1) as u32
    }
}

/// Locations that all services have: libc and the kernel.
struct Shared {
    libc: Vec<u32>,
    /// Root first, in the order of the calls.
    kernel: Vec<u32>,
}

impl Shared {
    fn new(corpus: &mut Corpus, seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let mapping = corpus.add_mapping("/usr/lib/x86_64-linux-gnu/libc.so.6", Some(&mut random));
        let native = |address| Location { mapping, address, line: None, frame_type: "native" };
        let libc =
            (0..LIBC_ADDRESSES as u64).map(|i| corpus.add_location(native(0x2_8000 + i * 0x4c0 + 0x17))).collect();
        let mapping = corpus.add_mapping("[kernel.kallsyms]", None);
        let kernel = (0_u64..).zip(KERNEL_FUNCTIONS).map(|(i, name)| {
            corpus.functions.push(Function { name: name.to_owned(), file: String::new(), start_line: 0 });
            let line = Some((corpus.functions.len() as u32 - 1, 0));
            let address = 0xffff_ffff_8100_0000 + i * 0x3a40;
            corpus.add_location(Location { mapping, address, line, frame_type: "kernel" })
        });
        let kernel = kernel.collect();
        Self { libc, kernel }
    }
}

/// Which function of a service calls which.
struct CallGraph {
    mapping: u32,
    language: Language,
    /// In [`Corpus::functions`], for each function here; native ones are not named.
    functions: Vec<u32>,
    callees: Vec<[usize; CALLEES]>,
    random: Random,
}

/// A frame: a function and where in it the program is, from 0: a call, or, from [`CALLEES`] on, the leaf.
type Frame = (usize, usize);

impl CallGraph {
    fn new(corpus: &mut Corpus, mix: Mix, name: &str, language: Language, mut random: Random) -> Self {
        let mapping = corpus.add_mapping(&format!("/usr/local/bin/{name}"), Some(&mut random));
        let count = mix.service_functions();
        let functions = (0..count).map(|number| {
            let (name, file) = language.function(name, number, &mut random);
            let start_line = 10 + random.below(2_000) as i64;
            corpus.functions.push(Function { name, file, start_line });
            corpus.functions.len() as u32 - 1
        });
        let functions = functions.collect();
        let callees = (0..count).map(|_| std::array::from_fn(|_| random.below(count))).collect();
        Self { mapping, language, functions, callees, random }
    }

    fn add_stacks(mut self, corpus: &mut Corpus, shared: &Shared, count: usize) {
        let mut paths: Vec<Vec<Frame>> = Vec::with_capacity(count);
        let mut known = HashMap::new();
        let mut unique = HashSet::with_capacity(count);
        while paths.len() < count {
            let path = self.path(&paths);
            let tail = self.tail(shared);
            let leaf_first = tail.into_iter().rev().chain(
                path.iter().rev().map(|&frame| *known.entry(frame).or_insert_with(|| self.location(corpus, frame))),
            );
            let stack: Vec<u32> = leaf_first.collect();
            if unique.insert(stack.clone()) {
                corpus.stacks.push(stack);
                paths.push(path);
            }
        }
    }

    /// Root first.
    fn path(&mut self, earlier: &[Vec<Frame>]) -> Vec<Frame> {
        // The sum of three even ones is near enough to a bell.
        let spread: usize = (0..3).map(|_| self.random.below(DEPTH_SPREAD + 1)).sum();
        let depth = DEPTH_MIN + spread / 3;
        let mut path = Vec::with_capacity(depth);
        if !earlier.is_empty() {
            let model = &earlier[self.random.below(earlier.len())];
            // Branching is likelier far from the root.
            let shared = (self.random.unit().sqrt() * model.len() as f64) as usize;
            path.extend(&model[..shared.min(depth - 1)]);
        }
        // The frame before a new one is at the call of it; a leaf copied from a model calls something now.
        while path.len() < depth {
            let function = match path.last_mut() {
                Some((function, place)) => {
                    *place = if *place < CALLEES { *place } else { self.random.below(CALLEES) };
                    self.callees[*function][*place]
                }
                None => self.random.below(CALLEES),
            };
            path.push((function, self.random.below(CALLEES)));
        }
        if let Some((_, place)) = path.last_mut() {
            *place = CALLEES + self.random.below(3);
        }
        path
    }

    /// What a stack goes on in, root first: nothing, libc, or libc and the kernel.
    fn tail(&mut self, shared: &Shared) -> Vec<u32> {
        let kind = self.random.below(5);
        if kind > 1 {
            return Vec::new();
        }
        let mut tail = vec![shared.libc[self.random.below(shared.libc.len())]];
        if kind == 0 {
            let first = 3 + self.random.below(shared.kernel.len() - 8);
            tail.extend(shared.kernel[..3].iter().chain(&shared.kernel[first..first + 1 + self.random.below(5)]));
        }
        tail
    }

    fn location(&self, corpus: &mut Corpus, (function, place): Frame) -> u32 {
        // Each function takes 1 KiB of code, and 20 lines.
        let address = 0x40_1000 + (function as u64) * 1024 + 31 + 97 * place as u64;
        let named = self.functions[function];
        let line = (self.language != Language::Native)
            .then(|| (named, corpus.functions[named as usize].start_line + 2 + 3 * place as i64));
        corpus.add_location(Location { mapping: self.mapping, address, line, frame_type: self.language.frame_type() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_as_many_as_promised_unique_and_as_deep_as_real_ones() {
        for (mix, want) in [(Mix::H, 42_000), (Mix::L, 1_150)] {
            let corpus = Corpus::new(mix, 1);
            let by_content = |&id: &u32| corpus.locations[id as usize].clone();
            let unique: HashSet<Vec<Location>> =
                corpus.stacks.iter().map(|stack| stack.iter().map(by_content).collect()).collect();
            assert_eq!(unique.len(), want);
            let depth = corpus.stacks.iter().map(Vec::len).sum::<usize>() as f64 / want as f64;
            assert!((23.0..28.0).contains(&depth), "{depth}");
            // Nodes of the tree from the root: were nothing shared, there would be `depth` for each stack.
            let prefixes = corpus.stacks.iter().flat_map(|stack| (0..stack.len()).map(|from| &stack[from..]));
            let nodes = prefixes.collect::<HashSet<_>>().len() as f64 / want as f64;
            assert!((4.0..14.0).contains(&nodes), "{nodes}");
        }
    }
}
