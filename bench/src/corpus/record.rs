//! Recording of a program: varve's agent samples this host, and a receiver in this process keeps the program's samples.
//!
//! The agent samples at ten times the fleet's 19 Hz. Every tenth tick of a CPU belongs to the same phase. One execution
//! of a program therefore gives ten phases, each like a recording at 19 Hz.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use proto::otlp::collector::profiles::v1development::profiles_service_server::ProfilesService;
use proto::otlp::collector::profiles::v1development::{ExportProfilesServiceRequest, ExportProfilesServiceResponse};
use testkit::sink;
use tonic::{Request, Response, Status};

use crate::corpus::Builder;
use crate::process::Group;

/// Sampling frequency of the agent: [`crate::corpus::PHASES`] times the fleet's 19 Hz.
const FREQUENCY_HZ: &str = "190";
/// Time by which a recording lasts longer than requested. In this time, the agent attaches and looks at all running
/// processes.
const WARM_UP: Duration = Duration::from_secs(3);

/// Records a program into a corpus file.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Name of the recorded program, and of its service
    #[arg(long)]
    program: String,
    /// Length of the recording, in seconds
    #[arg(long)]
    seconds: u64,
    /// Path of the corpus file to write
    #[arg(long)]
    out: PathBuf,
    /// varve binary whose agent records [default: the one beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Command to run; it is restarted whenever it ends
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// OTLP receiver: the builder of the recording, and the first error in a received request.
#[derive(Clone)]
struct Receiver(Arc<Mutex<(Builder, Option<anyhow::Error>)>>);

#[tonic::async_trait]
impl ProfilesService for Receiver {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = inner.0.add(request.get_ref()) {
            inner.1.get_or_insert(error);
        }
        Ok(Response::new(ExportProfilesServiceResponse::default()))
    }
}

/// Makes the recording, writes it to the file, and prints a description of it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = crate::process::varve_binary(arguments.binary.as_deref())?;
    let receiver = Receiver(Arc::new(Mutex::new((Builder::new(&arguments.program), None))));
    let runtime = tokio::runtime::Runtime::new()?;
    let endpoint = format!("http://{}", runtime.block_on(sink::serve(sink::ANY_PORT, receiver.clone())));
    sample(&binary, &endpoint, arguments)?;
    runtime.shutdown_timeout(Duration::from_secs(1));

    let (builder, error) = Arc::into_inner(receiver.0)
        .context("the receiver did not end")?
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(()), Err).context("what the agent sent")?;
    let recording = builder.finish()?;
    recording.write(&arguments.out)?;
    let bytes = std::fs::metadata(&arguments.out)?.len();
    crate::report::print(&crate::corpus::describe(&recording, bytes))
}

fn sample(binary: &Path, endpoint: &str, arguments: &Arguments) -> anyhow::Result<()> {
    let start = || {
        let mut command = Command::new(&arguments.command[0]);
        command.args(&arguments.command[1..]).env("OTEL_SERVICE_NAME", &arguments.program).stdout(Stdio::null());
        Group::start(&mut command)
    };
    let mut program = start()?;
    let mut agent = Command::new(binary);
    agent.args(["agent", "--endpoint", endpoint, "--frequency-hz", FREQUENCY_HZ, "--http-listen", "127.0.0.1:0"]);
    agent.args(["--spool-bytes-max", "0"]);
    let mut agent = Group::start(&mut agent)?;
    let end = Instant::now() + WARM_UP + Duration::from_secs(arguments.seconds);
    while Instant::now() < end {
        ensure!(agent.0.try_wait()?.is_none(), "the agent ended; it needs root or the capabilities of make run");
        if let Some(status) = program.0.try_wait()? {
            ensure!(status.success(), "{:?} ended with {status}", arguments.command);
            program = start()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The agent sends its remaining samples before it exits.
    agent.end(Duration::from_secs(20))?;
    program.end(Duration::from_secs(2))
}
