//! Marks for users with an unread warning: the prompt of a shell shows a warning whose mark is new.

use std::collections::BTreeMap;
use std::fs;

use genv_core::enforcement::{Enforcement, unread_file, unread_uid};

use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The unread warnings of a user.
type Warnings<'a> = Vec<(&'a str, &'a str, Option<&'a str>, u64)>;

/// The present marks.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// A hash of the warnings, by uid. `None`: the marks of an earlier daemon are not read yet.
    written: Option<BTreeMap<u32, String>>,
}

impl Unread {
    /// Writes the mark of each user whose unread warnings have changed, and removes the marks of users without unread
    /// warnings.
    pub(crate) fn mark(&mut self, directory: &RuntimeDirectory, status: &Enforcement) -> Result<(), FileError> {
        let before = self.written.take().unwrap_or_else(|| left(directory));
        let mut unread: BTreeMap<u32, Warnings<'_>> = BTreeMap::new();
        for held in &status.violations {
            let Some(warning) = &held.undelivered else {
                continue;
            };
            let what = (&*held.rule, &*held.subject, held.hostname.as_deref(), warning.number);
            for uid in held.uid.iter().chain(&held.victim_uids) {
                unread.entry(*uid).or_default().push(what);
            }
        }
        let now = unread.into_iter().map(|(uid, warnings)| (uid, format!("{warnings:?}")));
        let now: BTreeMap<u32, String> = now.collect();
        let outcome = replace(directory, &before, &now);
        self.written = Some(now);
        outcome
    }
}

fn replace(
    directory: &RuntimeDirectory,
    before: &BTreeMap<u32, String>,
    now: &BTreeMap<u32, String>,
) -> Result<(), FileError> {
    for (uid, _) in now.iter().filter(|(uid, warnings)| before.get(uid) != Some(warnings)) {
        directory.replace(&unread_file(*uid), b"", Audience::Everybody)?;
    }
    for uid in before.keys().filter(|uid| !now.contains_key(uid)) {
        directory.remove(&unread_file(*uid))?;
    }
    Ok(())
}

/// The marks of an earlier daemon, without their warnings.
fn left(directory: &RuntimeDirectory) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(directory.path()).into_iter().flatten().flatten();
    let uids = entries.filter_map(|entry| unread_uid(entry.file_name().to_str()?));
    uids.map(|uid| (uid, String::new())).collect()
}

#[cfg(test)]
mod tests {
    use genv_core::enforcement::{HeldViolation, UndeliveredWarning};

    use super::*;

    fn warned(uid: u32, victims: &[u32], number: u64) -> HeldViolation {
        HeldViolation {
            uid: Some(uid),
            victim_uids: victims.to_vec(),
            undelivered: Some(UndeliveredWarning { number, ..UndeliveredWarning::default() }),
            ..HeldViolation::default()
        }
    }

    #[test]
    fn each_user_with_an_unread_warning_has_a_mark_and_each_new_warning_a_new_mark() {
        let (folder, directory) = RuntimeDirectory::temporary();
        // An earlier daemon left this mark.
        directory.replace("unread-7", b"", Audience::Everybody).unwrap();
        let mut unread = Unread::default();
        let mut mark = |violations: Vec<HeldViolation>| {
            let status = Enforcement { violations, ..Enforcement::default() };
            unread.mark(&directory, &status).unwrap();
            let entries = fs::read_dir(folder.path()).unwrap().flatten();
            let mut found: Vec<_> = entries
                .map(|entry| {
                    use std::os::unix::fs::MetadataExt as _;
                    let name = entry.file_name().into_string().unwrap();
                    (name, entry.metadata().unwrap().ino())
                })
                .collect();
            found.sort();
            found
        };
        let names = |found: &[(String, u64)]| -> Vec<String> { found.iter().map(|(name, _)| name.clone()).collect() };
        let first = mark(vec![warned(5, &[6], 1)]);
        assert_eq!(names(&first), ["unread-5", "unread-6"]);
        assert_eq!(mark(vec![warned(5, &[6], 1)]), first, "nothing is new");
        let again = mark(vec![warned(5, &[], 2)]);
        assert_eq!(names(&again), ["unread-5"]);
        assert_ne!(again[0], first[0], "it is a new file");
        let delivered = HeldViolation { uid: Some(5), ..HeldViolation::default() };
        assert_eq!(mark(vec![delivered]), []);
    }
}
