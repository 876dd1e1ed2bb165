//! `genv remote query`

use clap::{Args, ValueEnum};
use genv_core::state::shape::Times;
use serde_json::Value;

use super::answers::ask;
use super::hosts::HostFlags;
use crate::commands::query::{self, answer};
use crate::output::JsonFlag;

/// Print fields of the environments with a name, a line for each environment.
#[derive(Debug, Args)]
pub(super) struct Query {
    /// Name of the environments.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    name: String,

    /// What to print.
    #[arg(long, alias = "queries", value_name = "FIELD", required = true, num_args = 1.., overrides_with = "query")]
    query: Vec<Field>,

    #[command(flatten)]
    output: JsonFlag,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Field {
    Hostname,
    Eid,
    Creation,
}

/// An environment of a host.
struct Found {
    hostname: String,
    eid: String,
    created_timestamp_seconds: Option<f64>,
}

impl Query {
    pub(super) fn run(self, flags: &HostFlags) -> anyhow::Result<()> {
        let answers = ask(flags, &["state"])?;
        let found = answers.told.iter().flat_map(|(host, answer)| {
            let environments = answer.snapshot.environments.iter();
            let named = environments.filter(|it| it.name.as_deref() == Some(&self.name));
            named.map(|it| Found {
                hostname: host.name.clone(),
                eid: it.eid.clone(),
                created_timestamp_seconds: it.created_timestamp_seconds,
            })
        });
        let found: Vec<Found> = found.collect();
        answer(found.iter(), &self.query, self.output.json)?;
        Ok(answers.finish()?)
    }
}

impl query::Field for Field {
    type Of = Found;

    fn text(self, of: &Found, times: &Times) -> String {
        match self {
            Self::Hostname => of.hostname.clone(),
            Self::Eid => of.eid.clone(),
            Self::Creation => times.text(of.created_timestamp_seconds),
        }
    }

    fn json(self, of: &Found, times: &Times) -> Value {
        self.text(of, times).into()
    }
}
