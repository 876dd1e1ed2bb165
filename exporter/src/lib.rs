//! Prometheus exporter of GPU devices, genv environments, users and processes.
//!
//! A [`Publication`](genv_core::model::Publication) becomes metric [`families`], these become the bytes of a
//! [`render::Rendering`], and the [`endpoints`] serve them. No step keeps state.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::anyhow;
use genv_core::collect::{self, CollectOptions};
use genv_core::stream::SnapshotStream;
use genv_remote::flags::HostFlags;
use genv_remote::follow::follow;
use genv_remote::{HostListError, allow_open_files};
use genv_simulator::{SourceError, SourceOptions};
use genv_web::{Server, WebConfig, build, log};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub mod endpoints;
pub mod families;
mod flags;
mod host;
pub mod instruments;
pub mod page;
mod publish;
pub mod render;
mod runbooks;
mod service_manager;
mod usernames;

use endpoints::Endpoints;
use flags::{Options, Task};
use instruments::Instruments;
use render::Renderer;
pub use usernames::Usernames;

/// Threads that answer requests; collecting and rendering have their own.
const WORKER_THREADS: usize = 2;

/// Runs the program: serves until a signal ends it, or runs another command.
pub fn run() -> ExitCode {
    genv_web::allocator::keep_little();
    let task = match Task::parse(std::env::args_os()) {
        Ok(task) => task,
        Err(message) => {
            // Help and version come here too. A failed print cannot be reported.
            let _ = message.print();
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(1));
        }
    };
    let outcome = match task {
        Task::Serve(options) => {
            tracing_subscriber::registry().with(log::to_stderr(options.log)).init();
            serve(options)
        }
        Task::Publish(options) => publish::publish(&options),
        Task::Man(folder) => folder.write(flags::command()).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            let usage = matches!(error.downcast_ref(), Some(SourceError::Usage(_))) || error.is::<HostListError>();
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// Prints the error that ends the program, whatever the log level is.
fn print_error(error: &anyhow::Error) {
    // A failed write to stderr cannot be reported.
    let _ = writeln!(io::stderr(), "genv-exporter: {error}");
}

fn serve(options: Options) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| {
            anyhow!("cannot start the threads that answer requests: {error}. Allow more processes (ulimit -u)")
        })?
        .block_on(collect_and_serve(options))
}

async fn collect_and_serve(options: Options) -> anyhow::Result<()> {
    let sources = options.sources.or_from_environment()?.in_reader();
    let web_config = options.web_config_file.as_deref().map(WebConfig::open).transpose()?;
    let mut terminate = listen_for(SignalKind::terminate())?;
    let mut interrupt = listen_for(SignalKind::interrupt())?;
    let limits = genv_web::Limits::new(options.max_requests);
    let server = if options.systemd_socket {
        Server::inherit(web_config, limits)?
    } else {
        Server::bind(&options.listen_addresses, web_config, limits).await?
    };

    let interval = options.collect.interval;
    let stream = match options.hosts.name_hosts() {
        true => other_hosts(&options.hosts, &options.collect)?,
        false => this_machine(&sources, options.usernames, options.collect)?,
    };
    let instruments = Instruments::new()?;
    let (renderer, latest) = Renderer::new(options.limits, options.usernames, instruments.clone());
    let endpoints = Endpoints::new(latest.clone(), &options.telemetry_path, interval);
    let requests = instruments.requests(&options.telemetry_path, endpoints.other_paths())?;
    let rendering = tokio::spawn(renderer.follow(stream));

    let addresses = server.local_addresses();
    tracing::info!(version = build::VERSION, revision = build::REVISION, ?addresses, "serving");
    let mut outcome = Ok(());
    let stopped = async {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("stopping on SIGTERM"),
            _ = interrupt.recv() => tracing::info!("stopping on SIGINT"),
            () = service_manager::notify_of(latest, interval) => {}
            _ = rendering => outcome = Err(anyhow!("cannot go on: the collection has ended. The log has the reason; start the exporter again")),
        }
    };
    server.serve(endpoints, requests, stopped).await;
    outcome
}

fn this_machine(
    sources: &SourceOptions,
    usernames: Usernames,
    options: CollectOptions,
) -> anyhow::Result<SnapshotStream> {
    let hosts = sources.open()?.into_iter();
    let hosts = hosts.map(|host| usernames.applied_to(host)).collect();
    collect::spawn(hosts, options)
        .map_err(|error| anyhow!("cannot start the threads that collect: {error}. Allow more processes (ulimit -u)"))
}

fn other_hosts(flags: &HostFlags, options: &CollectOptions) -> anyhow::Result<SnapshotStream> {
    let (source, _) = flags.open()?;
    allow_open_files();
    let follow_options = flags.follow_options(options.interval, options.max_age);
    let (stream, _) = follow(source, flags.dial(false), follow_options);
    Ok(stream)
}

fn listen_for(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).map_err(|error| {
        anyhow!("cannot wait for the signals that end this program: {error}. Allow more open files (ulimit -n)")
    })
}
