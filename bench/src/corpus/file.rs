//! A recording as a file: `bench/corpora/PROGRAM.zst`.
//!
//! The file is one zstd frame. Numbers are LEB128, and signed numbers are zigzag-encoded first. Before each table
//! stands its number of entries:
//!
//! ```text
//! | "varve corpus 1\n" | program: text | period_ns | strings: text … |
//! | mappings:  file, build ID …                                     IDs of strings; "" if there is none
//! | functions: name, file, start line … |
//! | locations: frame type, mapping, address - previous address (signed), number of lines, (function, line) … |
//! | nodes without the root: node - parent, location … |
//! | threads:   pid, tid, name, executable … |
//! | samples:   cpu …, periods …, jitter …, thread …, node …         five columns of equal length, ordered by time
//! ```
//!
//! The time of a sample is the time of the previous sample on the same CPU, plus `periods` x `period_ns`, plus
//! `jitter`. `jitter` is signed, in nanoseconds; it comes from the lateness of the timer. For the first sample of a
//! CPU, the start of the recording stands for the previous sample.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::recording::{Frames, Function, Location, Mapping, Node, Recording, Sample, Thread};
use super::varint::{Reader, Writer};

const MAGIC: &[u8] = b"varve corpus 1\n";
const ZSTD_LEVEL: i32 = 19;
/// Largest size of a decompressed file, in bytes. A recording of some minutes has a few MB.
const BYTES_MAX: usize = 256 << 20;
const CPUS_MAX: usize = 1024;

impl Recording {
    /// Reads a file that [`Recording::write`] wrote.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        decode(&bytes).with_context(|| format!("{}: record it again (bench/record-corpora)", path.display()))
    }

    /// Writes the recording to a file.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        std::fs::write(path, encode(self)?).with_context(|| path.display().to_string())
    }
}

fn encode(recording: &Recording) -> anyhow::Result<Vec<u8>> {
    let mut strings = Strings::default();
    let mut tables = Writer::default();
    write_frames(&mut tables, &mut strings, &recording.frames);
    tables.unsigned(recording.threads.len() as u64);
    for thread in &recording.threads {
        tables.unsigned(thread.pid.into());
        tables.unsigned(thread.tid.into());
        tables.unsigned(strings.id(&thread.name));
        tables.unsigned(strings.id(&thread.executable));
    }
    write_samples(&mut tables, recording);
    let mut out = Writer(MAGIC.to_vec());
    out.text(&recording.program);
    out.unsigned(recording.period_ns);
    out.unsigned(strings.texts.len() as u64);
    strings.texts.iter().for_each(|text| out.text(text));
    out.0.extend_from_slice(&tables.0);
    Ok(zstd::bulk::compress(&out.0, ZSTD_LEVEL)?)
}

#[derive(Default)]
struct Strings<'a> {
    texts: Vec<&'a str>,
    ids: HashMap<&'a str, u64>,
}

impl<'a> Strings<'a> {
    fn id(&mut self, text: &'a str) -> u64 {
        *self.ids.entry(text).or_insert_with(|| {
            self.texts.push(text);
            self.texts.len() as u64 - 1
        })
    }
}

fn write_frames<'a>(out: &mut Writer, strings: &mut Strings<'a>, frames: &'a Frames) {
    out.unsigned(frames.mappings.len() as u64);
    for mapping in &frames.mappings {
        out.unsigned(strings.id(&mapping.file));
        out.unsigned(strings.id(&mapping.build_id));
    }
    out.unsigned(frames.functions.len() as u64);
    for function in &frames.functions {
        out.unsigned(strings.id(&function.name));
        out.unsigned(strings.id(&function.file));
        out.signed(function.start_line);
    }
    out.unsigned(frames.locations.len() as u64);
    let mut address: u64 = 0;
    for location in &frames.locations {
        out.unsigned(strings.id(&location.frame_type));
        out.unsigned(location.mapping.into());
        out.signed(location.address.wrapping_sub(address).cast_signed());
        address = location.address;
        out.unsigned(location.lines.len() as u64);
        for &(function, line) in &location.lines {
            out.unsigned(function.into());
            out.signed(line);
        }
    }
    out.unsigned(frames.nodes.len() as u64 - 1);
    for (id, node) in (0_u32..).zip(&frames.nodes).skip(1) {
        out.unsigned((id - node.parent).into());
        out.unsigned(node.location.into());
    }
}

fn write_samples(out: &mut Writer, recording: &Recording) {
    let samples = &recording.samples;
    out.unsigned(samples.len() as u64);
    samples.iter().for_each(|sample| out.unsigned(sample.cpu.into()));
    let mut before: HashMap<u32, u64> = HashMap::new();
    let period = recording.period_ns;
    let steps = samples.iter().map(|sample| {
        let delta = sample.time_ns.wrapping_sub(before.insert(sample.cpu, sample.time_ns).unwrap_or(0));
        let periods = (delta + period / 2) / period;
        (periods, delta.wrapping_sub(periods * period).cast_signed())
    });
    let (periods, jitters): (Vec<u64>, Vec<i64>) = steps.unzip();
    periods.into_iter().for_each(|periods| out.unsigned(periods));
    jitters.into_iter().for_each(|jitter| out.signed(jitter));
    samples.iter().for_each(|sample| out.unsigned(sample.thread.into()));
    samples.iter().for_each(|sample| out.unsigned(sample.stack.into()));
}

fn decode(bytes: &[u8]) -> anyhow::Result<Recording> {
    let unpacked = zstd::bulk::decompress(bytes, BYTES_MAX).context("it is not one zstd frame")?;
    let Some(rest) = unpacked.strip_prefix(MAGIC) else { bail!("it is no corpus of this version") };
    let mut from = Reader(rest);
    let program = from.text()?.to_owned();
    let period_ns = from.unsigned()?;
    let strings = (0..from.count()?).map(|_| from.text()).collect::<anyhow::Result<Vec<_>>>()?;
    let frames = read_frames(&mut from, &strings)?;
    let threads = (0..from.count()?)
        .map(|_| {
            let pid = from.small()?;
            let tid = from.small()?;
            Ok(Thread { pid, tid, name: string(&mut from, &strings)?, executable: string(&mut from, &strings)? })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let samples = read_samples(&mut from, period_ns, threads.len(), frames.nodes.len())?;
    if !from.0.is_empty() {
        bail!("{} bytes are left", from.0.len());
    }
    Ok(Recording { program, period_ns, frames, threads, samples })
}

fn string(from: &mut Reader<'_>, strings: &[&str]) -> anyhow::Result<String> {
    Ok(strings[from.below(strings.len())? as usize].to_owned())
}

fn read_frames(from: &mut Reader<'_>, strings: &[&str]) -> anyhow::Result<Frames> {
    let mappings = (0..from.count()?)
        .map(|_| Ok(Mapping { file: string(from, strings)?, build_id: string(from, strings)? }))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let functions = (0..from.count()?)
        .map(|_| {
            let name = string(from, strings)?;
            let file = string(from, strings)?;
            Ok(Function { name, file, start_line: from.signed()? })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut address: u64 = 0;
    let locations = (0..from.count()?)
        .map(|_| {
            let frame_type = string(from, strings)?;
            let mapping = from.below(mappings.len())?;
            address = address.wrapping_add(from.signed()?.cast_unsigned());
            let count = from.count()?;
            let line = |_| Ok((from.below(functions.len())?, from.signed()?));
            let lines = (0..count).map(line).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(Location { mapping, address, frame_type, lines })
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut nodes = vec![Node { parent: 0, location: 0 }];
    for id in 1..=from.count()? {
        let up = from.below(id + 1)?;
        if up == 0 {
            bail!("node {id} is its own parent");
        }
        nodes.push(Node { parent: u32::try_from(id)? - up, location: from.below(locations.len())? });
    }
    Ok(Frames { mappings, functions, locations, nodes })
}

fn read_samples(from: &mut Reader<'_>, period_ns: u64, threads: usize, nodes: usize) -> anyhow::Result<Vec<Sample>> {
    let count = from.count()?;
    let column = |from: &mut Reader<'_>, end| (0..count).map(|_| from.below(end)).collect::<anyhow::Result<Vec<_>>>();
    let cpus = column(from, CPUS_MAX)?;
    let periods = (0..count).map(|_| from.unsigned()).collect::<anyhow::Result<Vec<_>>>()?;
    let jitters = (0..count).map(|_| from.signed()).collect::<anyhow::Result<Vec<_>>>()?;
    let threads = column(from, threads)?;
    let stacks = column(from, nodes)?;
    let mut before: HashMap<u32, u64> = HashMap::new();
    let samples = (0..count).map(|i| {
        let last = before.entry(cpus[i]).or_insert(0);
        let step = periods[i].wrapping_mul(period_ns).wrapping_add_signed(jitters[i]);
        *last = last.wrapping_add(step);
        Sample { time_ns: *last, cpu: cpus[i], thread: threads[i], stack: stacks[i] }
    });
    Ok(samples.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        let mapping = |file: &str, build_id: &str| Mapping { file: file.to_owned(), build_id: build_id.to_owned() };
        let location = |mapping, address, frame_type: &str, lines| Location {
            mapping,
            address,
            frame_type: frame_type.to_owned(),
            lines,
        };
        Recording {
            program: "p".to_owned(),
            period_ns: 5_263_157,
            frames: Frames {
                mappings: vec![mapping("", ""), mapping("/bin/p", "ab12")],
                functions: vec![Function { name: "main".to_owned(), file: "p.go".to_owned(), start_line: -1 }],
                locations: vec![
                    location(1, 0x1234, "native", vec![]),
                    location(0, u64::MAX, "kernel", vec![(0, 7), (0, i64::MIN)]),
                ],
                nodes: vec![
                    Node { parent: 0, location: 0 },
                    Node { parent: 0, location: 0 },
                    Node { parent: 1, location: 1 },
                ],
            },
            threads: vec![Thread { pid: 1, tid: 2, name: "main".to_owned(), executable: "p".to_owned() }],
            samples: vec![
                Sample { time_ns: 0, cpu: 0, thread: 0, stack: 2 },
                Sample { time_ns: 2_000_001, cpu: 1, thread: 0, stack: 1 },
                Sample { time_ns: 5_263_150, cpu: 0, thread: 0, stack: 2 },
                Sample { time_ns: 90_000_000, cpu: 1, thread: 0, stack: 0 },
            ],
        }
    }

    #[test]
    fn a_written_recording_reads_back_unchanged() {
        let recording = recording();
        let read = decode(&encode(&recording).unwrap()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{recording:?}"));
        assert_eq!(read.frames.leaf_first(2).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(read.frames.leaf_first(0).count(), 0);
    }

    #[test]
    fn every_prefix_is_refused_and_nothing_panics_on_damage() {
        let unpacked = zstd::bulk::decompress(&encode(&recording()).unwrap(), BYTES_MAX).unwrap();
        for end in 0..unpacked.len() {
            assert!(decode(&zstd::bulk::compress(&unpacked[..end], 1).unwrap()).is_err(), "{end}");
        }
        for at in 0..unpacked.len() * 8 {
            let mut damaged = unpacked.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            drop(decode(&zstd::bulk::compress(&damaged, 1).unwrap()));
        }
    }
}
