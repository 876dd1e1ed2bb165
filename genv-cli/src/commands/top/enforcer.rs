//! The violations that enforcers publish about the user of this program.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use genv_core::enforcement::{ENFORCEMENT_FILE, ENFORCER_DIRECTORY, Enforcement, HeldViolation, Stance};
use genv_core::proc::{own_uid, username};
use genv_core::text::{harmless, moment};
use jiff::tz::TimeZone;

use crate::commands::why::ELSEWHERE;

/// The newest publications of the enforcer of this machine, and of one elsewhere.
#[derive(Debug)]
pub(super) struct Enforcers {
    uid: u32,
    /// The user of this program.
    pub(super) username: String,
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
        let uid = own_uid();
        Self { uid, username: username(uid), here: Published::default(), elsewhere: Published::default() }
    }

    /// Reads the files that have changed, and describes what they have against the user.
    pub(super) fn refresh(&mut self, now_seconds: f64, zone: &TimeZone) -> Against {
        let directory = Path::new(ENFORCER_DIRECTORY);
        self.here.refresh(directory);
        self.elsewhere.refresh(&directory.join(ELSEWHERE));
        self.against(now_seconds, zone)
    }

    fn against(&self, now_seconds: f64, zone: &TimeZone) -> Against {
        let mut against = Against::default();
        for (published, is_here) in [(&self.here, true), (&self.elsewhere, false)] {
            match &published.content {
                None => {}
                Some(Err(error)) => against.doubt(harmless(error)),
                Some(Ok(enforcement)) => {
                    let stance = if is_here { enforcement.stance() } else { Stance::Enforces };
                    let own = enforcement.violations.iter().filter(|it| it.concerns(&self.username, Some(self.uid)));
                    for held in own {
                        against.add(held, stance, now_seconds, zone);
                    }
                    if let Some(why) = enforcement.not_known(now_seconds).filter(|_| is_here) {
                        against.doubt(format!("it is not known whether you break more rules: {}", harmless(&why)));
                    }
                }
            }
        }
        if against.page.is_empty() {
            let is_there = self.here.content.is_some() || self.elsewhere.content.is_some();
            let text = if is_there { "You break no rule." } else { "No enforcer publishes anything on this machine." };
            against.page.push(text.to_owned());
        }
        against
    }
}

impl Against {
    fn add(&mut self, held: &HeldViolation, stance: Stance, now_seconds: f64, zone: &TimeZone) {
        let [rule, subject, found, allowed, remedy] =
            [&held.rule, &held.subject, &held.found, &held.allowed, &held.remedy].map(|it| harmless(it));
        let outlook = harmless(&held.outlook(stance, now_seconds, zone));
        match &mut self.line {
            None => self.line = Some(format!("{rule}: {found}; {outlook}")),
            Some(line) if !line.ends_with(MORE) => line.push_str(MORE),
            Some(_) => {}
        }
        self.page.extend([
            format!("{rule}: {subject}"),
            format!("  Found      {found}"),
            format!("  Allowed    {allowed}"),
            format!("  Since      {}", moment(held.since_seconds, zone)),
            format!("  Outlook    {outlook}"),
            format!("  To comply  {remedy}"),
            String::new(),
        ]);
    }

    /// Adds that more may be against the user.
    fn doubt(&mut self, why: String) {
        self.line.get_or_insert_with(|| why.clone());
        self.page.push(why);
    }
}

/// The end of a line that names the first violation only.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_first_of_the_users_own_violations() {
        let held = |rule: &str, username: &str| HeldViolation {
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
        };
        let published = |violations: Vec<HeldViolation>, updated: f64| Published {
            version: None,
            content: Some(Ok(Enforcement {
                violations,
                mode: "enforce".to_owned(),
                interval_seconds: 10.0,
                updated_timestamp_seconds: updated,
                ..Enforcement::default()
            })),
        };
        let against = |here| {
            let elsewhere = Published::default();
            Enforcers { uid: 7, username: "alice".to_owned(), here, elsewhere }.against(1000.0, &TimeZone::UTC)
        };
        let of = |violations| against(published(violations, 1000.0));
        let one = "limit: uses 3 devices; at 1970-01-01 00:26 (in 10m) it is taken";
        assert_eq!(of(vec![held("limit", "bob"), held("limit", "alice")]).line.as_deref(), Some(one));
        let several = of(vec![held("limit", "alice"), held("idle", "alice"), held("hoard", "alice")]);
        assert_eq!(several.line, Some(format!("{one}{MORE}")));
        assert_eq!(several.page.len(), 21);
        assert_eq!(several.page[2], "  Allowed    2\\u{1b}");
        let none = of(vec![held("limit", "bob")]);
        assert_eq!((none.line, none.page), (None, vec!["You break no rule.".to_owned()]));
        assert_eq!(against(Published::default()).line, None);
        // A late enforcer, and a file that cannot be read.
        let late = against(published(Vec::new(), 900.0)).line.unwrap();
        assert!(late.starts_with("it is not known whether you break more rules: the enforcer has ended"), "{late}");
        let unread = Published { version: None, content: Some(Err("cannot read x".to_owned())) };
        assert_eq!(against(unread).line.as_deref(), Some("cannot read x"));
    }
}
