//! The report that a sampled program prints about itself, and samples compared with it.
//!
//! | line | meaning |
//! | --- | --- |
//! | `inner FUNCTION` | a function that the innermost function of any case calls, such as that which reads the clock |
//! | `case NAME FUNCTION;FUNCTION*40;...` | functions of a case, leaf first; the second one occurs in no other case |
//! | `case NAME ...;FUNCTION?;...` | the function is freed so soon that a marker may be in its place |
//! | `round START CPU CPU ...` | start of a round in UNIX time, and the CPU time of each case, all in nanoseconds |

use std::collections::HashMap;

use super::Language;
use crate::support::view::{Frame, Sample};

/// Markers in place of a function that was freed, or whose name was not read.
const WITHOUT_NAME: [&str; 2] = ["[function gone]", "[function unread]"];

/// Marker for a stack that ends early.
const BROKEN: &str = "[unwinding failed]";

/// Other markers in place of frames.
const MISSING: [&str; 4] = [BROKEN, "[truncated stack]", "[process exited]", "[no mapping]"];

/// Time after the first sample with a file in which its table may be missing, in nanoseconds. Some files are on the
/// stack only while a program compiles a function.
const NEW_NS: u64 = 1_000_000_000;

/// Loops of interpreters. A stack that has one, but no function of the language, has lost them.
const LOOPS: [&str; 7] = [
    "_PyEval_EvalFrameDefault",
    "Perl_runops_standard",
    "Perl_runops_debug",
    "rb_vm_exec",
    "vm_exec_core",
    "execute_ex",
    "Builtins_InterpreterEntryTrampoline",
];

/// Name of code that the program has compiled. Without functions of the language, these are missing.
const COMPILED: &str = "[anonymous code]";

/// A path of calls that ends in work.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Functions, leaf first.
    stack: Vec<String>,
}

/// The report that a program printed.
pub(crate) struct Report {
    inner: Vec<String>,
    pub(crate) cases: Vec<Case>,
    /// Start of each round, and the CPU time of each case.
    rounds: Vec<(u64, Vec<u64>)>,
}

/// The samples of a case, and its CPU time.
#[derive(Clone, Default)]
pub(crate) struct Count {
    pub(crate) cpu_ns: u64,
    pub(crate) samples: usize,
    /// Samples whose functions are those of the case, and whose native frames lead to the root of the stack.
    pub(crate) whole: usize,
    /// Those of them without a marker in place of a function.
    pub(crate) named: usize,
    /// Frames of other samples, leaf first.
    pub(crate) other: Vec<String>,
    /// Samples that are not whole, with a file that was new.
    pub(crate) new: usize,
    /// Samples before the first round that counts, which are not whole.
    pub(crate) early: usize,
}

/// The samples of a program from the first round on that begins after all cases had a whole sample.
pub(crate) struct Counts {
    /// Samples of each case, in the order of the report.
    pub(crate) cases: Vec<Count>,
    /// Samples in which frames are missing, or functions of a case, so that no case is known.
    pub(crate) lost: Count,
    /// Samples of a case in calls before and after its innermost function, which is not on the stack.
    pub(crate) between: Count,
    /// Number of rounds that were counted, and of all.
    pub(crate) rounds: (usize, usize),
}

impl Report {
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self { inner: Vec::new(), cases: Vec::new(), rounds: Vec::new() };
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap();
            match word {
                "inner" => report.inner.push(rest.to_owned()),
                "case" => {
                    let (name, stack) = rest.split_once(' ').unwrap();
                    let stack = stack.split(';').flat_map(repeated).collect();
                    report.cases.push(Case { name: name.to_owned(), stack });
                }
                "round" => {
                    let mut numbers = rest.split(' ').map(|number| number.parse().unwrap());
                    report.rounds.push((numbers.next().unwrap(), numbers.collect()));
                    assert_eq!(report.rounds.last().unwrap().1.len(), report.cases.len());
                }
                _ => panic!("{line} in {text}"),
            }
        }
        report
    }

    /// Counts the samples of a program in a language.
    pub(crate) fn count(&self, samples: &[Sample], language: &Language) -> Counts {
        let expected: Vec<&String> = self.cases.iter().flat_map(|case| &case.stack).collect();
        let is_expected = |name: &str| expected.iter().any(|expected| is_name(name, expected));
        let counts = |frame: &&Frame| {
            let is_of_program = frame.source.ends_with(language.file) || is_expected(&frame.name);
            let is_function = frame.kind == language.kind && (is_of_program || !language.has_own_functions);
            is_function || WITHOUT_NAME.contains(&frame.name.as_str())
        };
        let functions = |sample: &Sample| -> Vec<String> {
            sample.frames.iter().filter(counts).map(|frame| frame.name.clone()).collect()
        };
        let stacks: Vec<(Vec<String>, &Sample)> = samples.iter().map(|sample| (functions(sample), sample)).collect();
        // The table of a file is made after its first sample, and some files are in the stacks of one case only.
        let mut firsts: Vec<Option<u64>> = vec![None; self.cases.len()];
        for (stack, sample) in &stacks {
            if let Place::Whole(case) = self.place(stack, sample, language) {
                firsts[case] = firsts[case].into_iter().chain(sample.times.iter().copied()).min();
            }
        }
        // Without any whole sample, all of them are counted and described.
        let first = firsts.into_iter().flatten().max().unwrap_or_default();
        let rounds: Vec<_> = self.rounds.iter().filter(|(start, _)| first < *start).collect();
        let start = rounds.first().map_or(u64::MAX, |(start, _)| *start);
        let mut counts = Counts {
            cases: vec![Count::default(); self.cases.len()],
            lost: Count::default(),
            between: Count::default(),
            rounds: (rounds.len(), self.rounds.len()),
        };
        for (_, cpu) in &rounds {
            counts.cases.iter_mut().zip(cpu).for_each(|(count, ns)| count.cpu_ns += ns);
        }
        let mut seen: HashMap<&str, u64> = HashMap::new();
        for sample in samples {
            let first = sample.times.iter().copied().min().unwrap_or(u64::MAX);
            for frame in &sample.frames {
                let seen = seen.entry(&frame.file).or_insert(first);
                *seen = first.min(*seen);
            }
        }
        for (stack, sample) in &stacks {
            let newest = sample.frames.iter().map(|frame| seen[frame.file.as_str()]).max().unwrap_or_default();
            counts.add(self.place(stack, sample, language), sample, start, newest.saturating_add(NEW_NS));
        }
        counts
    }

    /// Compares the functions of a sample with the cases.
    fn place(&self, stack: &[String], sample: &Sample, language: &Language) -> Place {
        let is = |names: &[String], expected: &[String]| {
            names.len() == expected.len() && names.iter().zip(expected).all(|(name, expected)| is_name(name, expected))
        };
        let Some(case) = self.cases.iter().position(|case| stack.contains(&case.stack[1])) else {
            let is_missing = |name: &str| {
                let is_lone = name == COMPILED && stack.is_empty();
                is_lone || WITHOUT_NAME.contains(&name) || MISSING.contains(&name)
            };
            let has = |is: &dyn Fn(&Frame) -> bool| sample.frames.iter().any(is);
            let is_without_functions =
                has(&|frame| LOOPS.contains(&frame.name.as_str())) && !has(&|frame| frame.kind == language.kind);
            let works = self.cases.iter().any(|case| stack.contains(&case.stack[0]));
            let is_lost = works || is_without_functions || has(&|frame| is_missing(&frame.name));
            return if is_lost { Place::Lost } else { Place::Outside };
        };
        let expected = &self.cases[case].stack;
        let is_broken = sample.frames.iter().any(|frame| frame.name == BROKEN);
        let inner = stack.iter().take_while(|name| self.inner.contains(name)).count();
        match &stack[inner..] {
            whole if is(whole, expected) && !is_broken => Place::Whole(case),
            between if is(between, &expected[1..]) => Place::Between,
            _ => Place::Other(case),
        }
    }
}

/// The case of a sample.
#[derive(Clone, Copy)]
enum Place {
    Whole(usize),
    /// Some functions are not those of the case.
    Other(usize),
    Between,
    Lost,
    /// The sample is of no case.
    Outside,
}

impl Counts {
    /// Adds the times of a sample from `start` on. Before `known`, one of its files was new.
    fn add(&mut self, place: Place, sample: &Sample, start: u64, known: u64) {
        let number = |is: &dyn Fn(u64) -> bool| sample.times.iter().filter(|time| is(**time)).count();
        let times = number(&|time| start <= time);
        let new = number(&|time| start <= time && time < known);
        let (count, is_whole) = match place {
            Place::Whole(case) => (&mut self.cases[case], true),
            Place::Other(case) => (&mut self.cases[case], false),
            Place::Between => (&mut self.between, false),
            Place::Lost => (&mut self.lost, false),
            Place::Outside => return,
        };
        count.samples += times;
        if is_whole {
            count.whole += times;
            let has_names = sample.frames.iter().all(|frame| !WITHOUT_NAME.contains(&frame.name.as_str()));
            count.named += if has_names { times } else { 0 };
            return;
        }
        count.new += new;
        count.early += sample.times.len() - times;
        if new < times {
            count.other.push(format!("{} x {}", times - new, described(sample)));
        }
    }
}

/// True if a name is the expected one, or a marker that is allowed in its place.
fn is_name(name: &str, expected: &str) -> bool {
    match expected.strip_suffix('?') {
        Some(function) => name == function || WITHOUT_NAME.contains(&name),
        None => name == expected,
    }
}

/// Returns the functions that a part of a stack stands for: `name*40` is 40 times `name`.
fn repeated(part: &str) -> Vec<String> {
    let (name, count) = part.rsplit_once('*').unwrap_or((part, "1"));
    vec![name.to_owned(); count.parse().unwrap()]
}

/// Returns the names of a sample's frames, leaf first. Equal ones in a row are counted.
fn described(sample: &Sample) -> String {
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for frame in &sample.frames {
        match parts.last_mut() {
            Some((name, count)) if *name == frame.name => *count += 1,
            _ => parts.push((&frame.name, 1)),
        }
    }
    let text = |(name, count): (&str, usize)| if count == 1 { name.to_owned() } else { format!("{name}*{count}") };
    parts.into_iter().map(text).collect::<Vec<_>>().join(";")
}
