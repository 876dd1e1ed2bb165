use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::*;

const STATE: &str = r#"{"version": 1, "boot_id": "b", "environments": [{"eid": "7", "uid": 1000, "members": [{"pid": 7}]},
    {"eid": "8", "uid": 1000, "members": [{"pid": 8}]}], "devices": [{"index": 0, "attachments": [{"eid": "7"}]}]}"#;

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join(STATE_FILE), STATE).unwrap();
    directory
}

fn settle(directory: &TempDir) -> f64 {
    let then = SystemTime::now() - Duration::from_secs(60);
    let file = File::options().append(true).open(directory.path().join(STATE_FILE)).unwrap();
    file.set_modified(then).unwrap();
    then.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn eids(state: &State) -> Vec<&str> {
    let environments = state.environments.iter();
    environments.map(|entry| entry.eid.as_str()).collect()
}

fn error(directory: &TempDir) -> String {
    let error = StateDirectory::new(directory.path()).read().unwrap_err();
    error.to_string().replace(&directory.path().display().to_string(), "DIR")
}

#[test]
fn a_read_changes_nothing() {
    let directory = directory();
    let written = settle(&directory);
    let state = StateDirectory::new(directory.path()).read().unwrap();
    assert!(state.installed);
    assert!((state.written_timestamp_seconds.unwrap() - written).abs() < 1e-3);
    assert_eq!(eids(&state), ["7", "8"]);
    assert_eq!(state.devices[0].attachments[0].eid, "7");
    assert_eq!(state.warnings, Vec::<String>::new());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(directory.path().join(STATE_FILE)).unwrap(), STATE);
}

#[test]
fn a_missing_directory_is_an_empty_state_and_an_empty_one_an_installation() {
    let parent = TempDir::new().unwrap();
    let path = parent.path().join("genv");
    let read = || StateDirectory::new(&path).search_path("/nonexistent").read().unwrap();
    assert_eq!(read(), State::default());
    assert!(!path.exists());
    fs::create_dir(&path).unwrap();
    assert_eq!(read(), State { installed: true, ..State::default() });
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_genv_on_path_is_an_installation() {
    let bin = TempDir::new().unwrap();
    let installed = || {
        let source = StateDirectory::new("/nonexistent/genv");
        let mut source = source.search_path(format!("/nonexistent:{}", bin.path().display()));
        source.read().unwrap().installed
    };
    let program = bin.path().join("genv");
    assert!(!installed());
    fs::write(&program, "").unwrap();
    assert!(!installed());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(installed());
    fs::remove_file(&program).unwrap();
    fs::create_dir(&program).unwrap();
    assert!(!installed());
}

#[test]
fn genv_tmpdir_names_the_directory_unless_empty() {
    let of = |value: Option<&str>| directory_path(value.map(OsStr::new));
    assert_eq!(of(Some("/scratch/genv")), Path::new("/scratch/genv"));
    assert_eq!(of(Some("")), Path::new("/var/tmp/genv"));
    assert_eq!(of(None), Path::new("/var/tmp/genv"));
}

#[test]
fn an_unchanged_file_is_not_parsed_again_and_a_changed_one_is() {
    let directory = directory();
    let mut source = StateDirectory::new(directory.path());
    settle(&directory);
    source.read().unwrap();
    let (_, remembered) = source.last.as_mut().unwrap();
    remembered.environments[0].eid = "remembered".to_owned();
    assert_eq!(eids(&source.read().unwrap()), ["remembered", "8"]);

    // The same size, and at once.
    fs::write(directory.path().join(STATE_FILE), STATE.replace("8", "9")).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "9"]);
    fs::write(directory.path().join(STATE_FILE), STATE).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
    assert!(source.last.is_none());
}

#[test]
fn a_damaged_file_is_an_error_until_it_is_repaired() {
    let directory = directory();
    let mut source = StateDirectory::new(directory.path());
    for damaged in ["", r#"{"version": 1, "#] {
        fs::write(directory.path().join(STATE_FILE), damaged).unwrap();
        assert!(source.read().is_err());
    }
    fs::write(directory.path().join(STATE_FILE), STATE).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_read_whole() {
    let directory = directory();
    let (path, next) = (directory.path().join(STATE_FILE), directory.path().join("next"));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..1000 {
                fs::write(&next, STATE).unwrap();
                fs::rename(&next, &path).unwrap();
            }
        });
        let mut source = StateDirectory::new(directory.path());
        while !writer.is_finished() {
            assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
        }
    });
}

#[test]
fn a_special_file_is_refused_without_a_wait() {
    let envs = |make: &dyn Fn(&Path)| {
        let directory = directory();
        let path = directory.path().join(STATE_FILE);
        fs::remove_file(&path).unwrap();
        make(&path);
        error(&directory)
    };
    let errors = [
        envs(&|path| fs::create_dir(path).unwrap()),
        envs(&|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        envs(&|path| symlink(STATE_FILE, path).unwrap()),
        envs(&|path| symlink("/etc/passwd", path).unwrap()),
        envs(&|path| File::create(path).unwrap().set_len(1 << 40).unwrap()),
        envs(&|path| fs::write(path, "{").unwrap()),
    ];
    insta::assert_snapshot!(errors.join("\n"), @r#"
    cannot read DIR/state.json: it is not a regular file: move it away, or let the next change of an environment do so
    cannot read DIR/state.json: it is not a regular file: move it away, or let the next change of an environment do so
    cannot read DIR/state.json: it is a symbolic link, which anybody could have put there: move it away, or let the next change of an environment do so
    cannot read DIR/state.json: it is a symbolic link, which anybody could have put there: move it away, or let the next change of an environment do so
    cannot read DIR/state.json: it has 1099511627776 bytes, and no more than 8388608 are read: the next change of an environment keeps it beside, and goes on with its copy
    cannot read DIR/state.json: it is not understood: EOF while parsing an object at line 1 column 1: the next change of an environment keeps it beside, and goes on with its copy
    "#);
}

#[test]
fn a_removed_file_is_an_error_until_it_is_created_again() {
    let directory = directory();
    let (path, aside) = (directory.path().join(STATE_FILE), directory.path().join("aside"));
    let mut source = StateDirectory::new(directory.path());
    let before = source.read().unwrap();
    fs::rename(&path, &aside).unwrap();
    for _ in 0..2 {
        let error = source.read().unwrap_err().to_string();
        assert!(error.contains("state.json: it was removed"), "{error}");
    }
    // Another error in between changes nothing about that.
    fs::create_dir(&path).unwrap();
    assert!(source.read().is_err());
    fs::remove_dir(&path).unwrap();
    assert!(source.read().is_err());
    // A reader that never saw the file reports a removal where there is a copy.
    assert!(StateDirectory::new(directory.path()).read().is_ok());
    fs::copy(&aside, directory.path().join(COPY_FILE)).unwrap();
    assert!(error(&directory).contains("it was removed"));
    fs::rename(&aside, &path).unwrap();
    let after = source.read().unwrap();
    assert_eq!((after.environments, after.devices), (before.environments, before.devices));
}

#[test]
fn an_unusable_directory_is_an_error_with_a_remedy() {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    symlink("loop", directory.path().join("loop")).unwrap();
    let errors = ["file", "loop"].map(|name| {
        let error = StateDirectory::new(directory.path().join(name)).read();
        let error = error.unwrap_err().to_string();
        error.replace(&directory.path().display().to_string(), "DIR")
    });
    insta::assert_snapshot!(errors.join("\n"), @r#"
    cannot open the state directory DIR/file: Not a directory (os error 20): set GENV_TMPDIR to genv's directory
    cannot open the state directory DIR/loop: Too many levels of symbolic links (os error 40): set GENV_TMPDIR to genv's directory
    "#);
    assert_eq!(
        file::remedy(Errno::ACCESS),
        "let everybody read it, as genv does (directory 0777, files 0666), or run as a user who may"
    );
}
