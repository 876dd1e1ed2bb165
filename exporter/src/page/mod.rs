//! The pages for people: the lab, one host, one user. They are functions of a publication.
//!
//! `core/src/lab/` decides what is shown of a GPU or a user; the files here write it as HTML. Texts of users and hosts go
//! through [`parts::shown`].

mod host;
mod overview;
mod parts;
mod tables;
mod tile;
mod user;

use std::collections::BTreeMap;
use std::time::Duration;

use genv_core::lab::UserTotals;
use genv_core::model::{HostSnapshot, Publication};
use genv_web::{Foot, Live, Page};
use maud::{Markup, html};

use parts::{host_link, shown, user_link};

/// Links of a page to what exists, if its subject does not.
const MOST_LINKS: usize = 200;

/// What the pages of one exporter have in common.
#[derive(Debug)]
pub struct Site {
    /// The foot of all pages.
    pub foot: Foot,
    /// The time between two publications.
    pub interval: Duration,
}

impl Site {
    /// The site of an exporter with these paths.
    pub(crate) fn new(telemetry_path: &str, genv1_path: &str, interval: Duration) -> Self {
        let links = [
            [telemetry_path, "Metrics", "for Prometheus; ?host=NAME for one host"],
            [genv1_path, "Metrics of genv 1.x", "under the names of genv 1.4.3"],
            ["/snapshot", "Snapshot", "all facts as JSON; ?host=NAME for one host"],
            ["/sd", "Service discovery", "exporters on hosts that are followed over SSH, for http_sd_configs"],
            ["/runbooks", "Runbooks", "each alert, and what to do"],
            ["/-/healthy", "Health", "200 while the exporter collects"],
            ["/-/ready", "Readiness", "200 after the first collection"],
        ];
        let foot = Foot::new("genv-exporter: GPU devices, genv environments, users and processes.", &links);
        Self { foot, interval }
    }

    /// A page about these hosts.
    fn page(&self, sequence: u64, hosts: &[HostSnapshot], title: &str, facts: Markup, main: Markup) -> String {
        // By this machine's clock: those of the hosts may differ.
        let received = hosts.iter().filter(|it| it.snapshot.is_some()).filter_map(|it| it.received_timestamp_seconds);
        let live = Live { interval: self.interval, sequence, timestamp_seconds: received.max_by(f64::total_cmp) };
        Page { title, facts, main, live: Some(live), foot: Some(&self.foot) }.html()
    }

    /// All hosts.
    pub(crate) fn overview(&self, publication: &Publication) -> String {
        let (facts, main) = match publication.sequence {
            0 => (html! {}, html! { p { "No data was collected yet: the first values come in a moment." } }),
            _ => (overview::facts(&publication.hosts), overview::main(&publication.hosts)),
        };
        self.page(publication.sequence, &publication.hosts, "Lab", facts, main)
    }

    /// One host.
    pub(crate) fn host(&self, publication: &Publication, host: &HostSnapshot) -> String {
        let (title, facts) = (shown(&host.hostname), host::facts(host));
        self.page(publication.sequence, std::slice::from_ref(host), &title, facts, host::main(host))
    }

    /// One user.
    pub(crate) fn user(&self, publication: &Publication, username: &str, totals: &UserTotals) -> String {
        let main = user::main(&publication.hosts, username, totals);
        self.page(publication.sequence, &publication.hosts, &shown(username), html! { p { "user" } }, main)
    }

    /// The answer to the name of a host that does not exist, with those that do.
    pub(crate) fn no_host(&self, publication: &Publication, hostname: &str) -> String {
        let hosts = publication.hosts.iter().map(|it| host_link(&it.hostname));
        self.nothing(publication, &format!("There is no host '{}'.", shown(hostname)), "hosts", hosts)
    }

    /// The answer to the name of a user without a trace, with those who have one.
    pub(crate) fn no_user<Any>(
        &self,
        publication: &Publication,
        username: &str,
        users: &BTreeMap<String, Any>,
    ) -> String {
        let words = format!("No environment, process or use of a user '{}' is known.", shown(username));
        self.nothing(publication, &words, "users", users.keys().map(|it| user_link(it)))
    }

    fn nothing(
        &self,
        publication: &Publication,
        words: &str,
        all: &str,
        links: impl ExactSizeIterator<Item = Markup>,
    ) -> String {
        let more = links.len().saturating_sub(MOST_LINKS);
        let main = html! {
            div {
                p { (words) }
                @if links.len() == 0 {
                    p { "The " (all) " are not known yet. Try again in a moment." }
                } @else {
                    h2 { "The " (all) " are" }
                    ul.links {
                        @for link in links.take(MOST_LINKS) { li { (link) } }
                        @if more > 0 { li { "and " (more) " more" } }
                    }
                }
            }
        };
        self.page(publication.sequence, &publication.hosts, "Not found", html! {}, main)
    }
}
