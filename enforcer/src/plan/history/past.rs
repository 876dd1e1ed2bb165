//! The history as a plan asks for it: by the position of a host in the facts.

use super::{AttachmentHistory, History, HostHistory, ProcessHistory};
use crate::plan::facts::{Facts, HostId};

/// The part of each host in a history, at the host's position in the facts: a plan asks for it once for each process,
/// attachment and rule, so a search by hostname is done once for each host.
#[derive(Debug)]
pub(crate) struct Past<'h> {
    hosts: Vec<Option<&'h HostHistory>>,
}

impl<'h> Past<'h> {
    pub(crate) fn new(history: &'h History, facts: &Facts<'_>) -> Self {
        let mut known_host = history.host_lookup();
        let hosts = facts.hosts.iter();
        let hosts = hosts.map(|host| known_host(host.hostname));
        Self { hosts: hosts.collect() }
    }

    /// What is remembered of a host.
    pub(crate) fn host(&self, host: HostId) -> Option<&'h HostHistory> {
        self.hosts[host]
    }
}

impl History {
    /// Returns a search by hostname. Hosts that are asked for in the order of their names need no search.
    pub(in crate::plan) fn host_lookup<'h>(&'h self) -> impl FnMut(&str) -> Option<&'h HostHistory> {
        let mut next = self.hosts.iter().peekable();
        move |hostname| {
            while next.next_if(|(name, _)| name.as_str() < hostname).is_some() {}
            let host = next.next_if(|(name, _)| *name == hostname).map(|(_, host)| host);
            host.or_else(|| self.hosts.get(hostname))
        }
    }
}

impl AttachmentHistory {
    /// The time of the detach, unless a later state contradicts it. A state that was requested after the detach and
    /// shows the device shows a new attachment. A rehearsed detach changes no state.
    pub(crate) fn detached_by(&self, asked_seconds: Option<f64>) -> Option<f64> {
        self.detached_seconds
            .filter(|detached_seconds| self.rehearsed || asked_seconds.is_none_or(|asked| asked <= *detached_seconds))
    }
}

impl HostHistory {
    /// A process that was signalled or refused.
    pub(crate) fn process(&self, pid: u32, start_time_ticks: u64) -> Option<&ProcessHistory> {
        let process = self.processes.get(&pid)?;
        (process.start_time_ticks == start_time_ticks).then_some(process)
    }

    /// An attachment that was detached or refused.
    pub(crate) fn attachment(&self, eid: &str, gpu: u32, attached_seconds: Option<i64>) -> Option<&AttachmentHistory> {
        let attachment = self.attachments.get(eid)?.get(&gpu)?;
        (attachment.attached_seconds == attached_seconds).then_some(attachment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_is_found_in_whatever_order_hosts_are_asked_for() {
        let mut history = History::default();
        let known = ["gpu01", "gpu02", "gpu03", "gpu04"];
        history.hosts.extend(known.map(|hostname| (hostname.to_owned(), HostHistory::default())));
        let one_removed = ["gpu01", "gpu03", "gpu04"];
        let with_new = ["gpu00", "gpu01", "gpu02", "gpu02-new", "gpu03", "gpu04", "gpu05"];
        let unsorted = ["gpu04", "gpu02", "gpu00", "gpu01", "gpu03"];
        let repeated = ["gpu02", "gpu02", "gpu03"];
        for hostnames in [&known[..], &one_removed, &with_new, &unsorted, &repeated] {
            let mut known_host = history.host_lookup();
            for hostname in hostnames {
                let (found, expected) = (known_host(hostname), history.hosts.get(*hostname));
                let address = |host: Option<&HostHistory>| host.map(std::ptr::from_ref);
                assert_eq!(address(found), address(expected), "{hostname} of {hostnames:?}");
            }
        }
    }
}
