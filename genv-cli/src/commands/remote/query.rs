//! `genv remote query`

use clap::{Args, ValueEnum};
use genv_core::state::shape::Times;
use serde_json::Value;

use super::hosts::RemoteFlags;
use super::results::fetch_all;
use crate::commands::query::{self, print_fields};
use crate::output::JsonFlag;

/// Print fields of the environments with this name, one line for each environment.
#[derive(Debug, Args)]
pub(super) struct Query {
    /// Name of the environments.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    name: String,

    /// Fields to print.
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
    pub(super) fn run(self, flags: &RemoteFlags) -> anyhow::Result<()> {
        let results = fetch_all(flags, &["state"])?;
        let found = results.fetched.iter().flat_map(|(host, answer)| {
            let environments = answer.snapshot.environments.iter();
            let named = environments.filter(|it| it.name.as_deref() == Some(&self.name));
            named.map(|it| Found {
                hostname: host.name.clone(),
                eid: it.eid.clone(),
                created_timestamp_seconds: it.created_timestamp_seconds,
            })
        });
        let found: Vec<Found> = found.collect();
        print_fields(found.iter(), &self.query, self.output.json)?;
        Ok(results.finish()?)
    }
}

impl query::QueryField for Field {
    type Item = Found;

    fn text(self, item: &Found, times: &Times) -> String {
        match self {
            Self::Hostname => item.hostname.clone(),
            Self::Eid => item.eid.clone(),
            Self::Creation => times.text(item.created_timestamp_seconds),
        }
    }

    fn json(self, item: &Found, times: &Times) -> Value {
        self.text(item, times).into()
    }
}
