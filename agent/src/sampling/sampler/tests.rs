//! The sampler with this kernel: CPUs, lost samples, and the size of the ring buffer.

use ebpf::{NewFile, Record};
use host_files::elf::ElfImage;
use proto::build_id::to_hex;

use super::*;
use crate::names::location::{Location, Marker};
use crate::names::locator::Locator;
use crate::sampling::collector::add_file;
use testkit::report;

const SAMPLING: Sampling = Sampling { period_ns: 1_000_000, off_cpu: false, java_parameters: false };

fn status() -> Status {
    Status::new(&mut prometheus_client::registry::Registry::default())
}

// Needs BPF.
#[test]
fn a_cpu_that_cannot_be_sampled_does_not_stop_the_others() {
    let test = "a_cpu_that_cannot_be_sampled_does_not_stop_the_others";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let cpus = read_online_cpus().unwrap();
    let no_cpu = 1 << 20;
    let mut sampler = Sampler::start_on(&[no_cpu, cpus[0]], SAMPLING, 4096, Runtimes::default(), status()).unwrap();
    assert_eq!(sampler.attached.keys().copied().collect::<Vec<_>>(), [cpus[0]]);
    assert_eq!(sampler.unattached.iter().copied().collect::<Vec<_>>(), [no_cpu]);
    sampler.follow_cpus().unwrap();
    assert!(sampler.attached.keys().eq(cpus.iter()) && sampler.unattached.is_empty());
    sampler.detach().unwrap();
    assert!(sampler.attached.is_empty());
    assert!(matches!(
        Sampler::start_on(&[no_cpu], SAMPLING, 4096, Runtimes::default(), status()),
        Err(SamplerError::Program(_))
    ));
    report::bpf_test_ran(test);
}

// Needs BPF. A busy thread fills a ring buffer of one page that nobody reads.
#[test]
fn samples_that_do_not_fit_the_ring_buffer_are_counted() {
    let missing: Vec<_> = crate::probe().into_iter().filter(|missing| missing.is_required).collect();
    if let Some(missing) = missing.first() {
        return report::skipped("samples_that_do_not_fit_the_ring_buffer_are_counted", missing);
    }
    let mut sampler =
        Sampler::start_on(&read_online_cpus().unwrap(), SAMPLING, 4096, Runtimes::default(), status()).unwrap();
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        std::hint::black_box(started);
    }
    let mut records = 0;
    assert!(!sampler.read(usize::MAX, |message| {
        if let Message::Record(record) = message {
            ebpf::Sample::read(record).unwrap();
            records += 1;
        }
    }));
    let dropped = sampler.take_dropped().unwrap().records;
    assert!(0 < records && records < 4096 / 80, "{records}");
    // One CPU was busy for a second, less what other programs took.
    assert!(500 < dropped, "{dropped}");
    assert!(sampler.take_dropped().unwrap().records < dropped, "counted once");
    report::bpf_test_ran("samples_that_do_not_fit_the_ring_buffer_are_counted");
}

// Needs BPF. No record is read before the program has ended and its file is deleted.
#[test]
fn a_program_is_known_after_it_ended_and_its_file_is_deleted() {
    let test = "a_program_is_known_after_it_ended_and_its_file_is_deleted";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a-shell-with-a-long-name");
    std::fs::copy("/bin/sh", &path).unwrap();
    let image = ElfImage::read(&std::fs::File::open(&path).unwrap()).unwrap();
    let build_id = to_hex(&image.gnu_build_id.unwrap());
    let mut sampler =
        Sampler::start_on(&read_online_cpus().unwrap(), SAMPLING, 1 << 20, Runtimes::default(), status()).unwrap();
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let mut child = std::process::Command::new(&path).args(["-c", script]).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    drop(folder);

    let mut locator = Locator::new(std::sync::Arc::default(), crate::runtimes::Runtimes::default());
    let mut samples = 0;
    let mut native = 0;
    let mut unknown = Vec::new();
    sampler.read(usize::MAX, |message| {
        let record = match message {
            Message::NewFile(new, tables) => {
                return add_file(&mut locator.tables, &NewFile::read(new).unwrap(), tables);
            }
            Message::Record(record) => record,
        };
        let Ok(Record::Running(sample)) = Record::read(record) else { return };
        // Before execve the child runs this test, and inside execve it has no frames.
        let is_shell = sample.header.comm.starts_with(b"a-shell") && sample.user_frames().next().is_some();
        if sample.header.pid != child.id() || !is_shell {
            return;
        }
        let mut stack = Vec::new();
        locator.locate(&sample, &mut stack);
        let resource = locator.resource(&sample);
        samples += 1;
        let attributes = resource.attributes.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>();
        let wanted = [
            ("process.executable.name", "a-shell-with-a-long-name"),
            ("process.executable.path", path.to_str().unwrap()),
        ];
        assert_eq!(attributes, wanted);
        for id in stack {
            match locator.tables.locations.get(id).unwrap() {
                Location::Native { file, address } => {
                    let file = locator.tables.files.get(file).unwrap();
                    if *file.name == *path.to_str().unwrap() {
                        assert_eq!(*file.build_ids[0].1, *build_id);
                        assert!(file.part(address).is_some() && address < 1 << 32, "{file:?} {address:#x}");
                        native += 1;
                    }
                }
                Location::Marker(marker) => unknown.push(marker),
                Location::Named { .. } | Location::Lines { .. } => {}
            }
        }
    });
    // Without its table, the stack of a file may end early. About half of the samples are in the C library, and end
    // there.
    unknown.retain(|marker| *marker != Marker::UnwindingFailed);
    assert!(20 < samples && samples / 4 < native, "{native} frames in {samples} samples");
    assert!(unknown.len() * 10 < samples, "{unknown:?} in {samples} samples");
    report::bpf_test_ran(test);
}

#[test]
fn the_ring_buffer_is_a_power_of_two_that_grows_with_cpus_and_frequency() {
    for (cpus, frequency_hz, bytes) in
        [(2, 20, RING_BYTES_MIN), (64, 20, 16 << 20), (2, 97, 2 << 20), (512, 1000, RING_BYTES_MAX)]
    {
        let sampling = Sampling { period_ns: 1_000_000_000 / frequency_hz, off_cpu: false, java_parameters: false };
        assert_eq!(u64::from(ring_bytes(cpus, sampling)), bytes, "{cpus} {frequency_hz}");
    }
}

/// Number of instructions that the kernel verifies of one program before it refuses the program.
const VERIFIED_MAX: u32 = 1_000_000;

// Needs BPF. Other kernels verify the same program by other paths, so a program near the limit would not load there.
#[test]
fn the_kernel_verifies_at_most_a_third_of_the_instructions_it_allows() {
    let test = "the_kernel_verifies_at_most_a_third_of_the_instructions_it_allows";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let sampling = Sampling { off_cpu: true, ..SAMPLING };
    let sampler = Sampler::start_on(&[0], sampling, 4096, Runtimes::default(), status()).unwrap();
    for (name, program) in sampler.bpf.programs() {
        let verified = program.info().unwrap().verified_instruction_count().unwrap();
        report::note(&format!("{name}: {verified} verified instructions of {VERIFIED_MAX}"));
        assert!(0 < verified && verified <= VERIFIED_MAX / 3, "{name}: {verified}");
    }
    report::bpf_test_ran(test);
}
