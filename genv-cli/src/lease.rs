//! Leases: announced ends of environments.

use std::time::Duration;

use clap::Args;
use genv_core::duration::{days, parse_duration};
use genv_core::model::local_time_zone;
use genv_core::state::LONGEST_LEASE;
use genv_core::text::short_moment;

use crate::ago::{ago, now_seconds};
use crate::output::{Cell, DOUBTFUL};

/// The flag for the lease of a new environment.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LeaseFlag {
    /// Announce that the environment ends after this time. A rule of the enforcer may then end it.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_lease)]
    pub(crate) duration: Option<Duration>,
}

/// Parses the duration of a lease.
pub(crate) fn parse_lease(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    if duration < Duration::from_secs(1) || duration > LONGEST_LEASE {
        let longest = days(LONGEST_LEASE);
        return Err(format!("a lease lasts 1s to {longest}: choose such a duration, for example 8h"));
    }
    Ok(duration)
}

/// `until 18:00`, or `ended 20 minutes ago`.
pub(crate) fn describe_end(end_seconds: f64) -> String {
    let now_seconds = now_seconds();
    if end_seconds <= now_seconds {
        return format!("ended {}", ago(end_seconds, now_seconds));
    }
    format!("until {}", moment(end_seconds))
}

/// The cell of a table: `18:00`, or `ended`.
pub(crate) fn table_cell(end_seconds: Option<f64>) -> Cell {
    match end_seconds {
        None => Cell::default(),
        Some(end) if end <= now_seconds() => Cell::own("ended").style(DOUBTFUL),
        Some(end) => Cell::own(moment(end)),
    }
}

/// `18:00`, with the day if it is not today.
pub(crate) fn moment(end_seconds: f64) -> String {
    short_moment(end_seconds, now_seconds(), &local_time_zone())
}
