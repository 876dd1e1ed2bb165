use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::*;

const ENVS: &str = r#"{"envs": [{"eid": "7", "uid": 1000, "pids": [7]}, {"eid": "8", "uid": 1000, "pids": [8]}]}"#;
const DEVICES: &str = r#"{"devices": [{"index": 0, "attachments": [{"eid": "7"}]}]}"#;

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("envs.json"), ENVS).unwrap();
    fs::write(directory.path().join("devices.json"), DEVICES).unwrap();
    directory
}

fn settle(directory: &TempDir, name: &str) -> f64 {
    let then = SystemTime::now() - Duration::from_secs(60);
    let file = File::options().append(true).open(directory.path().join(name)).unwrap();
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
fn both_files_make_one_state() {
    let directory = directory();
    let written = settle(&directory, "envs.json");
    let state = StateDirectory::new(directory.path()).read().unwrap();
    assert!(state.installed);
    assert!((state.written_timestamp_seconds.unwrap() - written).abs() < 1e-3);
    assert_eq!(eids(&state), ["7", "8"]);
    assert_eq!(state.devices[0].attachments[0].eid, "7");
    assert_eq!(state.warnings, Vec::<String>::new());
    // A read changes nothing.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    assert_eq!(fs::read_to_string(directory.path().join("envs.json")).unwrap(), ENVS);
}

#[test]
fn warnings_of_both_files_name_file_and_entry() {
    let directory = directory();
    fs::write(directory.path().join("envs.json"), r#"{"envs": [{"eid": "7"}]}"#).unwrap();
    fs::write(directory.path().join("devices.json"), r#"{"devices": [{"index": 3, "total_memory": "x"}]}"#).unwrap();
    let state = StateDirectory::new(directory.path()).read().unwrap();
    assert!(!state.incomplete && state.left_out.eids.contains("7"));
    assert_eq!(
        state.warnings,
        [
            r#"envs.json: environment "7": its uid is missing, and it is left out"#,
            r#"devices.json: device 3: its total_memory is "x", and is left out"#,
        ]
    );
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
    settle(&directory, "envs.json");
    source.read().unwrap();
    let (_, remembered) = source.environments.last.as_mut().unwrap();
    remembered.entries[0].eid = "remembered".to_owned();
    assert_eq!(eids(&source.read().unwrap()), ["remembered", "8"]);

    // The same size, and at once.
    fs::write(directory.path().join("envs.json"), ENVS.replace("8", "9")).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "9"]);
    fs::write(directory.path().join("envs.json"), ENVS).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
    assert!(source.environments.last.is_none());
}

#[test]
fn a_damaged_file_is_an_error_until_it_is_repaired() {
    let directory = directory();
    let mut source = StateDirectory::new(directory.path());
    for damaged in ["", r#"{"envs": [{"eid": "7", "#] {
        fs::write(directory.path().join("envs.json"), damaged).unwrap();
        assert!(source.read().is_err());
        settle(&directory, "envs.json");
        assert!(source.read().is_err());
    }
    fs::write(directory.path().join("envs.json"), ENVS).unwrap();
    assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
}

#[test]
fn a_file_that_is_being_written_is_never_read_in_part() {
    let directory = directory();
    let path = directory.path().join("envs.json");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // As genv 1.4.3 writes: first truncated, then written in pieces.
            for _ in 0..300 {
                let mut file = File::create(&path).unwrap();
                for piece in ENVS.as_bytes().chunks(40) {
                    std::io::Write::write_all(&mut file, piece).unwrap();
                    thread::yield_now();
                }
            }
        });
        let mut source = StateDirectory::new(directory.path());
        while !writer.is_finished() {
            if let Ok(state) = source.read() {
                assert_eq!(eids(&state), ["7", "8"]);
            }
        }
        assert_eq!(eids(&source.read().unwrap()), ["7", "8"]);
    });
}

#[test]
fn a_special_file_is_refused_without_a_wait() {
    let envs = |make: &dyn Fn(&Path)| {
        let directory = directory();
        let path = directory.path().join("envs.json");
        fs::remove_file(&path).unwrap();
        make(&path);
        error(&directory)
    };
    let errors = [
        envs(&|path| fs::create_dir(path).unwrap()),
        envs(&|path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success())),
        envs(&|path| symlink("envs.json", path).unwrap()),
        envs(&|path| symlink("/etc/passwd", path).unwrap()),
        envs(&|path| File::create(path).unwrap().set_len(1 << 40).unwrap()),
        envs(&|path| fs::write(path, "{").unwrap()),
    ];
    insta::assert_snapshot!(errors.join("\n"), @r#"
    cannot read DIR/envs.json: it is not a regular file: move it away, or let the next change of an environment do so
    cannot read DIR/envs.json: it is not a regular file: move it away, or let the next change of an environment do so
    cannot read DIR/envs.json: it is a symbolic link, which anybody could have put there: move it away, or let the next change of an environment do so
    cannot read DIR/envs.json: it is a symbolic link, which anybody could have put there: move it away, or let the next change of an environment do so
    cannot read DIR/envs.json: it has 1099511627776 bytes, and no more than 33554432 are read: move it away: environments whose processes live are restored by the commands of their users
    cannot read DIR/envs.json: it is not JSON: EOF while parsing an object at line 1 column 1: if it stays so, the next change of an environment keeps it beside, and goes on with what is whole in it
    "#);
}

#[test]
fn a_removed_file_is_an_error_until_it_is_created_again() {
    for name in ["envs.json", "devices.json"] {
        let directory = directory();
        let (path, aside) = (directory.path().join(name), directory.path().join("aside"));
        let mut source = StateDirectory::new(directory.path());
        let before = source.read().unwrap();
        fs::rename(&path, &aside).unwrap();
        for _ in 0..2 {
            let error = source.read().unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: it was removed")), "{error}");
        }
        // Another error in between changes nothing about that.
        let other = directory.path().join(if name == "envs.json" { "devices.json" } else { "envs.json" });
        let content = fs::read(&other).unwrap();
        fs::write(&other, "{").unwrap();
        assert!(source.read().is_err());
        fs::write(&other, content).unwrap();
        assert!(source.read().is_err());
        fs::rename(&aside, &path).unwrap();
        let after = source.read().unwrap();
        assert_eq!(after.environments, before.environments);
        assert_eq!(after.devices, before.devices);
        // A reader that never saw the file reports no removal.
        fs::rename(&path, &aside).unwrap();
        assert!(StateDirectory::new(directory.path()).read().is_ok());
    }
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
