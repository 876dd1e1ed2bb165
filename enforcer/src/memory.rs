//! What must outlive the daemon: the history of violations, in `history.json`.

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::History;

/// The file.
pub const HISTORY_FILE: &str = "history.json";

/// What was remembered. What cannot be used is set aside, and said: violations begin anew then, which acts later
/// rather than sooner.
///
/// # Errors
/// The file cannot be read, or not be set aside.
pub fn load(directory: &RuntimeDirectory) -> Result<(History, Option<String>), FileError> {
    let Some(content) = directory.read(HISTORY_FILE)? else {
        return Ok((History::default(), None));
    };
    let why = match History::parse(&String::from_utf8_lossy(&content)) {
        Ok(history) => return Ok((history, None)),
        Err(error) => error,
    };
    let aside = directory.set_aside(HISTORY_FILE)?;
    let path = directory.path().join(aside);
    let said = format!(
        "{why}: it is set aside as {}, and every violation begins anew",
        path.display()
    );
    Ok((History::default(), Some(said)))
}

/// Writes it down; it is on the disk then.
///
/// # Errors
/// It cannot be written; what was there before still is.
pub fn save(directory: &RuntimeDirectory, history: &History) -> Result<(), FileError> {
    let content = history.to_json().map_err(|error| FileError {
        what: "write",
        path: directory.path().join(HISTORY_FILE),
        why: error.to_string(),
        remedy: "this is a defect of the program: report it",
    })?;
    directory.replace(HISTORY_FILE, content.as_bytes(), Audience::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_history_is_set_aside_and_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        save(&directory, &History::default()).unwrap();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        for damaged in [&b"{\"vers"[..], b"", b"\xff"] {
            directory
                .replace(HISTORY_FILE, damaged, Audience::Own)
                .unwrap();
            let (history, said) = load(&directory).unwrap();
            assert_eq!(history, History::default());
            assert!(said.is_some_and(|said| said.contains("set aside")));
            assert_eq!(load(&directory).unwrap().1, None);
        }
    }
}
