//! A cache of `ssh -G`, for hosts that the configuration treats alike.
//!
//! Only ssh evaluates the configuration. Its output for one host is reused for another if the arguments are equal and the same
//! `Host` lines match in all files that ssh read (`-v` names them). If anything else may depend on the host, ssh runs for each
//! host.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::spawn_blocking;

use crate::known_hosts::patterns_match;

/// An output is reused for this time. A change of the configuration counts after it.
const LIFETIME: Duration = Duration::from_secs(5);

/// The most outputs that are kept.
const MAX_OUTPUTS: usize = 8;

/// The clock of a file server may be behind by this time.
const MAX_CLOCK_LAG: Duration = Duration::from_secs(5);

/// Options that may contain the name of the host and that genv does not use.
const UNUSED_OPTIONS: [&str; 4] = ["host ", "controlpath ", "localcommand ", "remotecommand "];

static CACHE: Mutex<Vec<CachedOutput>> = Mutex::new(Vec::new());

/// An evaluation of the configuration for a host, by ssh.
#[derive(Clone, Debug)]
pub(super) struct Evaluation {
    pub(super) program: OsString,
    /// The arguments before the name of the host.
    pub(super) arguments: Vec<OsString>,
    pub(super) host: String,
    pub(super) began: (Instant, SystemTime),
}

/// An output that may be reused for other hosts.
#[derive(Debug)]
struct CachedOutput {
    evaluation: Evaluation,
    /// The lines that are the same for all these hosts.
    text: String,
    /// Whether the address is the name of the host, as without a `HostName`.
    is_named: bool,
    conditions: Conditions,
}

/// The parts of the configuration files that depend on the host.
#[derive(Debug, Default)]
struct Conditions {
    /// The patterns of each line `Host`, with commas between.
    patterns: Vec<String>,
    /// The values of `HostName`, in lower case.
    addresses: Vec<String>,
}

/// Whether an output for this host may be reused, or that of another one for it. The program must be a binary, as OpenSSH's is:
/// a script named `ssh` may read other files for other hosts.
pub(super) async fn is_shared(program: &OsStr, host: &str) -> bool {
    let program = program.to_owned();
    is_plain(host) && spawn_blocking(move || is_binary(&program)).await.unwrap_or(false)
}

fn is_binary(program: &OsStr) -> bool {
    // A program with a slash in its name replaces each folder.
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut paths = env::split_paths(&folders).map(|folder| folder.join(program));
    let mut magic = [0; 4];
    let path = paths.find(|path| path.is_file());
    path.and_then(|path| File::open(path).ok()?.read_exact(&mut magic).ok()).is_some() && magic == *b"\x7fELF"
}

/// The output for a host, if that of another one can be reused.
pub(super) fn find(evaluation: &Evaluation) -> Option<String> {
    let mut outputs = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    outputs.retain(|output| output.evaluation.began.0.elapsed() < LIFETIME);
    let (at, text) = outputs.iter().enumerate().find_map(|(at, output)| Some((at, output.for_host(evaluation)?)))?;
    // The first to go is the one that was not used for the longest time.
    outputs[..=at].rotate_right(1);
    Some(text)
}

/// Keeps an output, if it may be reused for other hosts. `log`: what ssh wrote to stderr because of `-v`. Reads the files of the
/// configuration.
pub(super) fn keep(evaluation: Evaluation, text: &str, log: &str) {
    // Another host that was evaluated at the same time may have kept the same.
    if find(&evaluation).is_none()
        && let Some(output) = CachedOutput::new(evaluation, text, log)
    {
        let mut outputs = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.insert(0, output);
        outputs.truncate(MAX_OUTPUTS);
    }
}

impl CachedOutput {
    fn new(evaluation: Evaluation, text: &str, log: &str) -> Option<Self> {
        let host = evaluation.host.as_str();
        let conditions = Conditions::read(log, evaluation.began.1)?;
        let mut output = String::new();
        let mut is_named = false;
        for line in text.lines().filter(|line| !UNUSED_OPTIONS.iter().any(|name| line.starts_with(name))) {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("hostname", address) if address == host && !conditions.addresses.iter().any(|named| named == host) => {
                    is_named = true;
                }
                ("hostname", address) if !conditions.addresses.contains(&address.to_ascii_lowercase()) => return None,
                ("proxycommand", value) if value != "none" => return None,
                ("canonicalizehostname", value) if !["false", "no"].contains(&value) => return None,
                _ if line.contains(host) => return None,
                _ => output = output + line + "\n",
            }
        }
        Some(Self { evaluation, text: output, is_named, conditions })
    }

    /// What ssh would print for a host, without options that genv does not use.
    fn for_host(&self, evaluation: &Evaluation) -> Option<String> {
        let Evaluation { program, arguments, host, .. } = evaluation;
        let is_alike =
            |patterns: &String| patterns_match(patterns, host) == patterns_match(patterns, &self.evaluation.host);
        let counts = (program, arguments) == (&self.evaluation.program, &self.evaluation.arguments)
            && !self.text.contains(host)
            && self.conditions.patterns.iter().all(is_alike);
        let address = if self.is_named { format!("hostname {host}\n") } else { String::new() };
        counts.then(|| address + &self.text)
    }
}

impl Conditions {
    /// Reads the files that ssh has read. Absent if anything but a `Host` line may depend on the host, or if a file has changed
    /// since ssh began.
    fn read(log: &str, began: SystemTime) -> Option<Self> {
        let began = began.duration_since(SystemTime::UNIX_EPOCH).ok()?.saturating_sub(MAX_CLOCK_LAG);
        let began = (i64::try_from(began.as_secs()).ok()?, i64::from(began.subsec_nanos()));
        let mut conditions = Self::default();
        let mut paths =
            log.lines().filter_map(|line| line.strip_prefix("debug1: Reading configuration data ")).peekable();
        // Without any file the log may be written in other words.
        paths.peek()?;
        for path in paths {
            for line in fs::read_to_string(path).ok()?.lines() {
                conditions.add(line.trim_ascii())?;
            }
            let file = fs::metadata(path).ok()?;
            if (file.ctime(), file.ctime_nsec()) >= began {
                return None;
            }
        }
        Some(conditions)
    }

    /// Adds a line of a configuration file.
    fn add(&mut self, line: &str) -> Option<()> {
        if line.is_empty() || line.starts_with('#') {
            return Some(());
        }
        let (keyword, value) = line.split_once([' ', '\t', '='])?;
        let has_only = |others: &[u8]| value.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte));
        let is_understood = match keyword.to_ascii_lowercase().as_str() {
            "host" => {
                self.patterns.push(value.split_ascii_whitespace().collect::<Vec<_>>().join(","));
                has_only(b".-_:/*?!% \t") && !value.bytes().any(|byte| byte.is_ascii_uppercase())
            }
            "hostname" => {
                self.addresses.push(value.trim_matches([' ', '\t', '=']).to_ascii_lowercase());
                has_only(b".-_: \t=")
            }
            // ssh resolves the name itself for CanonicalizePermittedCNAMEs.
            "match" | "canonicalizepermittedcnames" | "" => false,
            // genv uses none of the first three, and an output with a ProxyCommand is not kept.
            "controlpath" | "localcommand" | "remotecommand" | "proxycommand" => true,
            keyword => keyword.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !value.contains('%'),
        };
        is_understood.then_some(())
    }
}

/// Whether ssh takes a name as it is: not an address, and without capital letters.
fn is_plain(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    host.starts_with(|first: char| first.is_ascii_lowercase()) && host.len() < 100 && host.bytes().all(plain)
}

#[cfg(test)]
mod tests;
