//! `varve agent record`: samples this host for a while, and writes what it saw to a file.
//!
//! Invariants: the file is there when it is complete, or not at all; what cannot be written is refused before
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
use crate::roles::{self, StopSignals, open_symbols};
use output::Output;
use progress::Progress;

/// How often it is looked how far it is.
const TICK: Duration = Duration::from_millis(100);
/// A host that is busy with other things may take long to read the symbols of its largest programs.
const NAMING_MAX: Duration = Duration::from_secs(120);
/// Symbol tables are asked once and then thrown away: those of a host's largest programs have some hundred MB.
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
        format!("{path}: its ending does not say what it shall be: .pb.gz, .folded and .otlp do, and so does --format")
    })?;
    let output = Output::create(&output)?;
    let symbols = if format == Format::Otlp { None } else { Some(Symbols::open()?) };
    let config = RecordConfig {
        frequency_hz: sampling.frequency_hz,
        off_cpu: sampling.off_cpu,
        environment_variables: sampling.environment_variables,
    };
    let status = Status::new(&mut Registry::default());
    let mut progress = Progress::new(duration);
    let recording = sample(&config, duration, &status, &mut signals, &mut progress).await?;

    anyhow::ensure!(recording.samples() != 0, "nothing was sampled before it was stopped, and nothing is written");

    let stop = CancellationToken::new();
    let writing = Writing { recording: Arc::new(recording), format, symbols, stop: stop.clone(), progress };
    let recording = Arc::clone(&writing.recording);
    let mut writing = tokio::task::spawn_blocking(move || writing.write(output));
    let too_late = tokio::time::sleep(NAMING_MAX);
    tokio::pin!(too_late);
    let written = loop {
        // What has no name when it is stopped goes without.
        tokio::select! {
            written = &mut writing => break written.context("writing")??,
            () = signals.next() => stop.cancel(),
            () = &mut too_late, if !stop.is_cancelled() => stop.cancel(),
        }
    };
    client::print(&summary(&written, format, &config, &recording, &status))
}

/// Samples until the time is over, or until it is asked to stop.
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
            .context("nothing was recorded (`varve agent doctor` says what this host lacks, and what to do)"),
    })
}

/// A symbol store that goes with this.
struct Symbols {
    store: SymbolStore,
    _directory: TempDir,
}

impl Symbols {
    fn open() -> anyhow::Result<Self> {
        let own = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix("varve-record-").permissions(own).tempdir();
        let directory = directory.with_context(|| {
            format!("symbol tables need room in {}: TMPDIR names another place", std::env::temp_dir().display())
        })?;
        // Somebody waits for it, and not for ever.
        let limits = Limits { disk_bytes_max: SYMBOLS_BYTES_MAX, conversion_niceness: 0, ..Limits::DEFAULT };
        Ok(Self { store: open_symbols(directory.path(), limits)?, _directory: directory })
    }
}

/// A recording that is only to be written.
struct Writing {
    recording: Arc<Recording>,
    format: Format,
    /// Where it is to have names.
    symbols: Option<Symbols>,
    stop: CancellationToken,
    progress: Progress,
}

/// What was written.
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

/// What the file is, what is in it, and what is not.
fn summary(written: &Written, format: Format, config: &RecordConfig, recording: &Recording, status: &Status) -> String {
    let Written { path, bytes, unnamed } = written;
    let what = match (format, config.off_cpu) {
        (Format::Otlp, _) => "OTLP",
        (Format::Pprof, _) => "pprof",
        (Format::Folded, false) => "folded",
        (Format::Folded, true) => "folded waits",
    };
    let (samples, processes) = (recording.samples(), recording.processes());
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
            Reason::Converting => "there was no time to read its symbols".to_owned(),
            other => other.to_string(),
        };
        let more = if unnamed.len() == 1 { String::new() } else { format!("; and {} more files", unnamed.len() - 1) };
        text += &format!("without names: {}: {reason}{more}\n", client::printable(file));
    }
    text
}
