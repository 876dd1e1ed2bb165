//! `genv snapshot`

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use genv_core::collect::{CollectOptions, spawn};
use genv_core::duration::parse_interval;
use genv_core::model::Publication;

use crate::source_flags::SourceFlags;

const EXAMPLE: &str = "Example: print the users of each device every second
  genv snapshot --follow --interval=1s | jq -c '.processes[] | [.username, .devices[].index]'

docs/snapshot.schema.json describes the object. Each host of a scenario has its own line.";

/// Print a snapshot of this machine as one JSON object on one line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Snapshot {
    /// Print a line each interval, until interrupted or until stdout is closed.
    #[arg(long)]
    follow: bool,

    /// Time between two snapshots.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_interval)]
    interval: Duration,

    #[command(flatten)]
    sources: SourceFlags,
}

impl Snapshot {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let hosts = self.sources.options().or_from_environment()?.open()?;
        let mut stream = spawn(hosts, CollectOptions::every(self.interval)).context("cannot start collecting")?;
        let mut out = BufWriter::new(io::stdout().lock());
        loop {
            let publication = stream
                .next_blocking()
                .context("cannot collect: it ended by a defect of this program; start it again")?;
            print(&publication, &mut out).context("cannot print the snapshot")?;
            if !self.follow {
                return Ok(());
            }
        }
    }
}

fn print(publication: &Publication, out: &mut impl Write) -> io::Result<()> {
    for host in &publication.hosts {
        if let Some(snapshot) = &host.snapshot {
            serde_json::to_writer(&mut *out, &**snapshot)?;
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}
