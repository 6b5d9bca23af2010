//! `varve agent record`: samples this host for a while, and writes a file.
//!
//! Invariants: the file exists when it is complete, or not at all. A file that cannot be written is refused before
//! anything is sampled.

pub(crate) mod output;
mod progress;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::{AgentError, RecordConfig, Recording, State, Status, Unnamed};
use anyhow::Context as _;
use prometheus_client::registry::Registry;
use symbol_store::limits::Limits;
use symbol_store::{Reason, SymbolStore};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::client;
use crate::command::{Format, RecordOptions};
use crate::process::log;
use crate::roles::{self, StopSignals, open_symbols_of_host};
use output::Output;
use progress::Progress;

/// Interval of progress reports.
const TICK: Duration = Duration::from_millis(100);
/// Longest time that a recording spends on naming its frames. On a busy host, reading the symbols of the largest
/// programs can take long.
const NAMING_MAX: Duration = Duration::from_secs(120);
/// Largest total size of the temporary symbol tables, in bytes. The largest programs of a host need some hundred MB.
const SYMBOLS_BYTES_MAX: u64 = 2 << 30;

pub(crate) fn run(options: RecordOptions) -> anyhow::Result<()> {
    log::start_for_command()?;
    roles::block_on_runtime(record(options))
}

async fn record(options: RecordOptions) -> anyhow::Result<()> {
    let mut signals = StopSignals::catch()?;
    let RecordOptions { output, format, duration, sampling } = options;
    let format = format.or_else(|| Format::of(&output)).with_context(|| {
        let path = output.display();
        format!("{path}: its extension is no known format: use .pb.gz, .folded or .otlp, or --format")
    })?;
    let output = Output::create(&output)?;
    let symbols = if format == Format::Otlp { None } else { Some(Symbols::open()?) };
    let config = RecordConfig {
        frequency_hz: sampling.frequency_hz,
        off_cpu: sampling.off_cpu,
        java_parameters: sampling.java_parameters,
        environment_variables: sampling.environment_variables,
    };
    let status = Status::new(&mut Registry::default());
    let mut progress = Progress::new(duration);
    let recording = sample(&config, duration, &status, &mut signals, &mut progress).await?;

    anyhow::ensure!(recording.samples() != 0, "no sample was taken, so no file was written");

    let stop = CancellationToken::new();
    let writing = Writing { recording: Arc::new(recording), format, symbols, stop: stop.clone(), progress };
    let recording = Arc::clone(&writing.recording);
    let mut writing = tokio::task::spawn_blocking(move || writing.write(output));
    let too_late = tokio::time::sleep(NAMING_MAX);
    tokio::pin!(too_late);
    let written = loop {
        // Frames that have no name yet when the naming is stopped stay unnamed.
        tokio::select! {
            written = &mut writing => break written.context("writing")??,
            () = signals.next() => stop.cancel(),
            () = &mut too_late, if !stop.is_cancelled() => stop.cancel(),
        }
    };
    client::print(&summary(&written, format, &config, &recording, &status))
}

/// Samples until the time is over or a signal arrives.
async fn sample(
    config: &RecordConfig,
    duration: Duration,
    status: &Status,
    signals: &mut StopSignals,
    progress: &mut Progress,
) -> anyhow::Result<Recording> {
    let stop = CancellationToken::new();
    let recording = agent::record(config, duration, &stop, status);
    tokio::pin!(recording);
    let mut ticks = tokio::time::interval(TICK);
    let mut began = None;
    let recorded = loop {
        tokio::select! {
            recorded = &mut recording => break recorded,
            () = signals.next() => stop.cancel(),
            _ = ticks.tick() => {
                let now = status.snapshot();
                if now.state == State::Running {
                    progress.sampling(began.get_or_insert_with(Instant::now).elapsed(), &now);
                }
            }
        }
    };
    progress.clear();
    recorded.map_err(|error| match error {
        AgentError::Config(_) => anyhow::Error::from(error),
        _ => anyhow::Error::from(error)
            .context("nothing was recorded (`varve agent doctor` lists what is missing on this host, and what to do)"),
    })
}

/// A temporary symbol store, whose directory is deleted on drop.
struct Symbols {
    store: SymbolStore,
    _directory: TempDir,
}

impl Symbols {
    fn open() -> anyhow::Result<Self> {
        let own = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("varve-record-").permissions(own).tempdir();
        let directory = directory.with_context(|| {
            format!(
                "symbol tables cannot be written to {}: set TMPDIR to another folder",
                std::env::temp_dir().display()
            )
        })?;
        // A user waits, so conversions run at normal priority. The disk space of their tables is limited.
        let limits = Limits { disk_bytes_max: SYMBOLS_BYTES_MAX, conversion_niceness: 0, ..Limits::DEFAULT };
        Ok(Self { store: open_symbols_of_host(directory.path(), limits)?, _directory: directory })
    }
}

/// A finished recording, and the format in which to write it.
struct Writing {
    recording: Arc<Recording>,
    format: Format,
    /// Symbol store that names the frames; `None` if the format has no names.
    symbols: Option<Symbols>,
    stop: CancellationToken,
    progress: Progress,
}

/// A written file.
struct Written {
    path: String,
    bytes: usize,
    unnamed: Vec<Unnamed>,
}

impl Writing {
    fn write(mut self, output: Output) -> anyhow::Result<Written> {
        let mut unnamed = Vec::new();
        let bytes = match self.symbols {
            None => self.recording.otlp(),
            Some(symbols) => {
                let progress = |done, files| self.progress.naming(done, files);
                let named = self.recording.named(&symbols.store, &self.stop, progress);
                unnamed.extend_from_slice(named.unnamed());
                match self.format {
                    Format::Folded => named.folded().context("folded stacks of more than 1 GiB: pprof is smaller")?,
                    Format::Pprof | Format::Otlp => named.pprof().context("compressing")?,
                }
            }
        };
        self.progress.clear();
        let path = output.finish(&bytes)?;
        Ok(Written { path, bytes: bytes.len(), unnamed })
    }
}

/// Returns a summary of the file: its format, its content, and the samples and names that it lacks.
fn summary(written: &Written, format: Format, config: &RecordConfig, recording: &Recording, status: &Status) -> String {
    let Written { path, bytes, unnamed } = written;
    let what = match (format, config.off_cpu) {
        (Format::Otlp, _) => "OTLP",
        (Format::Pprof, _) => "pprof",
        (Format::Folded, false) => "folded",
        (Format::Folded, true) => "folded waits",
    };
    let samples = recording.samples();
    let processes = recording.processes();
    let seconds = recording.duration().as_secs_f64();
    let dropped: Vec<_> = status.dropped().iter().map(|(reason, samples)| format!("{samples} {reason}")).collect();
    let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
    let mut text = format!(
        "{path}: {what}, {bytes} bytes, {samples} samples of {processes} processes in {seconds:.1} s; \
         dropped: {dropped}"
    );
    if recording.is_full() {
        text += "; it ended early, because one recording can hold no more";
    }
    if let Some(fault) = recording.fault() {
        text += &format!("; it ended early: {fault}");
    }
    text.push('\n');
    if let Some(Unnamed { file, reason }) = unnamed.first() {
        let reason = match reason {
            Reason::Converting => "its symbols were not read in time".to_owned(),
            other => other.to_string(),
        };
        let more = if unnamed.len() == 1 { String::new() } else { format!("; and {} more files", unnamed.len() - 1) };
        text += &format!("without names: {}: {reason}{more}\n", client::printable(file));
    }
    text
}
