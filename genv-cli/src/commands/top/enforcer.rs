//! The violations that enforcers publish about the user of this program.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use genv_core::enforcement::{ENFORCEMENT_FILE, ENFORCER_DIRECTORY, Enforcement};
use genv_core::text::harmless;
use jiff::tz::TimeZone;

use crate::commands::why::{ELSEWHERE, User, ViolationReport};

/// The newest publications of the enforcer of this machine, and of one elsewhere.
#[derive(Debug)]
pub(super) struct Enforcers {
    /// The user of this program.
    pub(super) user: User,
    here: Published,
    elsewhere: Published,
}

/// The newest publication of an enforcer.
#[derive(Debug, Default)]
struct Published {
    /// The inode and the time of the last change of its file; absent without a file.
    version: Option<(u64, i64, i64)>,
    /// Absent without a file; else the publication, or why the file cannot be read.
    content: Option<Result<Enforcement, String>>,
}

/// What the enforcers have against the user, in words. Names are escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Against {
    /// In one line; absent if there is nothing.
    pub(super) line: Option<String>,
    /// As a page.
    pub(super) page: Vec<String>,
}

impl Enforcers {
    pub(super) fn new() -> Self {
        Self { user: User::new(None), here: Published::default(), elsewhere: Published::default() }
    }

    /// Reads the files that have changed, and describes what they have against the user.
    pub(super) fn refresh(&mut self, now_seconds: f64, zone: &TimeZone) -> Against {
        let directory = Path::new(ENFORCER_DIRECTORY);
        self.here.refresh(directory);
        self.elsewhere.refresh(&directory.join(ELSEWHERE));
        self.against(now_seconds, zone)
    }

    fn against(&self, now_seconds: f64, zone: &TimeZone) -> Against {
        let unread = self.here.error().or(self.elsewhere.error());
        let (here, elsewhere) = (self.here.enforcement(), self.elsewhere.enforcement());
        let Some(mut report) = ViolationReport::new(&self.user, here, elsewhere, now_seconds) else {
            let text = unread.map_or_else(|| "No enforcer publishes anything on this machine.".to_owned(), harmless);
            return Against { line: unread.map(harmless), page: vec![text] };
        };
        // A file that cannot be read may have violations.
        report.not_known = unread.map(str::to_owned).or(report.not_known.take());
        let mut lines = report.lines(now_seconds, zone).into_iter();
        let line = lines.next().map(|line| line + if lines.next().is_some() { MORE } else { "" });
        Against { line, page: report.text(now_seconds, zone).lines().map(str::to_owned).collect() }
    }
}

/// The end of a line that names the first of several.
const MORE: &str = " (! shows more)";

impl Published {
    /// Reads the file if it has changed.
    fn refresh(&mut self, directory: &Path) {
        let file = fs::metadata(directory.join(ENFORCEMENT_FILE)).ok();
        let version = file.map(|it| (it.ino(), it.mtime(), it.mtime_nsec()));
        if version != self.version || version.is_none() {
            self.version = version;
            self.content = Enforcement::read(directory).transpose();
        }
    }

    fn enforcement(&self) -> Option<&Enforcement> {
        self.content.as_ref()?.as_ref().ok()
    }

    /// Why the file cannot be read.
    fn error(&self) -> Option<&str> {
        self.content.as_ref()?.as_ref().err().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use genv_core::enforcement::{FrozenViolation, HeldViolation};

    use super::*;

    fn held(rule: &str, username: &str) -> HeldViolation {
        HeldViolation {
            rule: rule.to_owned(),
            username: username.to_owned(),
            subject: "environment 4711".to_owned(),
            found: "uses 3 devices".to_owned(),
            allowed: "2\x1b".to_owned(),
            action: "detach".to_owned(),
            stage: "warned".to_owned(),
            at_seconds: Some(1600.0),
            remedy: "release one".to_owned(),
            ..HeldViolation::default()
        }
    }

    fn publication(violations: Vec<HeldViolation>) -> Enforcement {
        Enforcement {
            violations,
            mode: "enforce".to_owned(),
            interval_seconds: 10.0,
            updated_timestamp_seconds: 1000.0,
            ..Enforcement::default()
        }
    }

    type Content = Option<Result<Enforcement, String>>;

    /// What is against alice at 1000.
    fn against(here: Content, elsewhere: Content) -> Against {
        let published = |content| Published { version: None, content };
        let (here, elsewhere) = (published(here), published(elsewhere));
        Enforcers { user: User::new(Some("alice".to_owned())), here, elsewhere }.against(1000.0, &TimeZone::UTC)
    }

    #[test]
    fn the_line_names_the_first_of_the_users_own_violations() {
        let of = |violations| against(Some(Ok(publication(violations))), None);
        let one = "limit: uses 3 devices; at 1970-01-01 00:26 (in 10m) it is taken";
        assert_eq!(of(vec![held("limit", "bob"), held("limit", "alice")]).line.as_deref(), Some(one));
        let several = of(vec![held("limit", "alice"), held("idle", "alice"), held("hoard", "alice")]);
        assert_eq!(several.line, Some(format!("{one}{MORE}")));
        assert_eq!(several.page.len(), 21);
        assert_eq!(several.page[2], "  Allowed    2\\u{1b}");
        // An enforcer on another machine does not publish here whether a process that it ended is still there.
        let ended = HeldViolation {
            action: "terminate".to_owned(),
            stage: "acted".to_owned(),
            at_seconds: Some(940.0),
            targets: vec!["process 7".to_owned()],
            ..held("idle", "alice")
        };
        let elsewhere = against(Some(Ok(publication(Vec::new()))), Some(Ok(publication(vec![ended]))));
        let line = "idle: uses 3 devices; SIGTERM was sent at 1970-01-01 00:15 (1m ago): process 7";
        assert_eq!(elsewhere.line.as_deref(), Some(line));
    }

    #[test]
    fn only_a_current_and_complete_publication_shows_that_no_rule_is_broken() {
        let complete = publication(vec![held("limit", "bob")]);
        let late = Enforcement { updated_timestamp_seconds: 900.0, ..complete.clone() };
        let frozen = FrozenViolation {
            rule: "idle".to_owned(),
            username: Some("alice".to_owned()),
            why: "dark".to_owned(),
            ..FrozenViolation::default()
        };
        let frozen = Enforcement { frozen: vec![frozen], ..complete.clone() };
        let unread = || Some(Err("cannot read x".to_owned()));
        let not_known = "it is not known whether you break more rules: ";
        let ended = "the enforcer has ended or hangs, and its last cycle was 1m40s ago";
        for (here, elsewhere, is_said, line) in [
            (Some(Ok(complete.clone())), None, true, None),
            (Some(Ok(late)), None, false, Some(format!("{not_known}{ended}"))),
            (Some(Ok(frozen)), None, false, Some("idle: it is not known whether this is over: dark".to_owned())),
            (Some(Ok(complete.clone())), unread(), false, Some(format!("{not_known}cannot read x"))),
            (unread(), None, false, Some("cannot read x".to_owned())),
            (None, Some(Ok(complete)), false, None),
            (None, None, false, None),
        ] {
            let against = against(here, elsewhere);
            let says_so = against.page.iter().any(|it| it.contains("breaks no rule"));
            assert_eq!((says_so, against.line), (is_said, line), "{:?}", against.page);
        }
    }
}
