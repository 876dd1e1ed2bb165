use std::os::unix::fs::symlink;

use genv_core::model::MemoryAmount;
use rustix::fs::{CWD, FileType, Mode};

use super::folder::{load, save};
use super::*;

/// A home directory with a repository, and a project in it.
struct Lab {
    _root: tempfile::TempDir,
    outside: PathBuf,
    home: PathBuf,
    repository: PathBuf,
    project: PathBuf,
}

fn lab() -> Lab {
    let root = tempfile::tempdir().unwrap();
    let outside = root.path().join("scratch/data");
    let home = root.path().join("home/me");
    let repository = home.join("code/repository");
    let project = repository.join("src/deep");
    for folder in [&outside, &project, &repository.join(".git")] {
        fs::create_dir_all(folder).unwrap();
    }
    Lab { _root: root, outside, home, repository, project }
}

fn places(working: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    SearchPath::new(working, working, home).all().cloned().collect()
}

#[test]
fn the_search_ends_at_the_repository_and_at_the_home_directory() {
    let lab = lab();
    let (code, link) = (lab.home.join("code"), lab.outside.join("to-home"));
    symlink(&lab.home, &link).unwrap();
    for (working, home, expected) in [
        (&lab.project, &lab.home, &[&lab.project, &lab.repository.join("src"), &lab.repository, &lab.home][..]),
        (&code, &lab.home, &[&code, &lab.home]),
        (&code, &link, &[&code, &lab.home]),
        (&lab.home, &lab.home, &[&lab.home]),
    ] {
        let found = places(Some(working), Some(home));
        assert!(found.iter().eq(expected.iter().copied()), "{found:?}");
    }
    // Outside of both, directories above do not count.
    let (outside, home) = (lab.outside, lab.home);
    assert_eq!(places(Some(&outside), Some(&home)), [outside.clone(), home.clone()]);
    assert_eq!(places(Some(&outside), None), [outside]);
    assert_eq!(places(None, Some(&home)), [home]);
}

#[test]
fn below_a_link_the_directories_of_its_target_are_searched_too() {
    let lab = lab();
    let link = lab.outside.join("link");
    symlink(&lab.repository, &link).unwrap();
    fs::remove_dir(lab.repository.join(".git")).unwrap();
    let known = link.join("src/deep");
    let found = SearchPath::new(Some(&known), Some(&lab.project), Some(&lab.home));
    let expected = [&known, &lab.repository.join("src"), &lab.repository, &lab.home.join("code"), &lab.home];
    assert!(found.all().eq(expected), "{found:?}");
    assert!(!found.outside);
}

#[test]
fn the_nearest_directory_counts_and_in_it_the_first_of_three() {
    let lab = lab();
    let (code, source) = (lab.home.join("code"), lab.repository.join("src"));
    for (directory, name, content) in [
        (&lab.home, "genv.toml", ""),
        (&lab.repository, "pyproject.toml", "[tool.genv]\n"),
        (&source, "pyproject.toml", "[tool.genv]\n"),
        (&source, "genv.toml", ""),
        // A damaged file without a table for genv.
        (&lab.project, "pyproject.toml", "<<<<<<< genv\n"),
    ] {
        fs::write(directory.join(name), content).unwrap();
    }
    let found = |directory: &Path| {
        let places = SearchPath::new(Some(directory), Some(directory), Some(&lab.home));
        search(places, fs::metadata(directory).unwrap().uid()).source.unwrap().path
    };
    for (directory, expected) in [
        (&lab.home, lab.home.join("genv.toml")),
        (&code, lab.home.join("genv.toml")),
        (&lab.repository, lab.repository.join("pyproject.toml")),
        (&source, source.join("genv.toml")),
        (&lab.project, source.join("genv.toml")),
    ] {
        assert_eq!(found(directory), expected);
    }
    fs::create_dir(source.join(".genv")).unwrap();
    assert_eq!(found(&source), source.join(".genv"));
}

#[test]
fn the_searched_directories_are_described_in_order() {
    let (a, b, c) = (PathBuf::from("/a"), PathBuf::from("/a/b"), PathBuf::from("/home/c"));
    let described = |known: &[&PathBuf], outside: bool| {
        let places = SearchPath {
            known: known.iter().copied().cloned().collect(),
            home: Some(c.clone()),
            outside,
            ..SearchPath::default()
        };
        places.to_string()
    };
    assert_eq!(described(&[], false), "the home directory /home/c");
    assert_eq!(described(&[&b, &a], false), "/a/b up to /a, and in the home directory /home/c");
    assert_eq!(
        described(&[&b], true),
        "/a/b, and in the home directory /home/c. Directories above count only within a git repository or the home directory"
    );
}

#[test]
fn sources_of_other_users_than_root_are_skipped() {
    assert!(trusts(1000, 1000) && trusts(1000, 0) && trusts(0, 0));
    assert!(!trusts(1000, 1001) && !trusts(0, 1000));
    let lab = lab();
    fs::write(lab.project.join("genv.toml"), "gpus = 1").unwrap();
    fs::create_dir(lab.repository.join(".genv")).unwrap();
    let own = fs::metadata(&lab.project).unwrap().uid();
    let of = |user: u32| {
        let places = SearchPath::new(Some(&lab.project), Some(&lab.project), Some(&lab.home));
        search(places, user)
    };
    let found = of(own);
    assert_eq!(found.source.as_ref().map(Source::path), Some(&*lab.project.join("genv.toml")));
    assert_eq!(found.skipped(), None);
    // Files of root count for all users.
    if own != 0 {
        let found = of(own + 1);
        assert_eq!(found.source, None);
        let note = found.skipped().unwrap();
        assert!(note.contains("genv.toml belongs to "), "{note}");
        assert!(note.ends_with("as 1 more of other users"), "{note}");
    }
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

#[test]
fn a_saved_configuration_is_loaded_again_and_files_may_be_empty_or_end_with_a_newline() {
    let folder = folder(&[("name", b"old"), ("gpus", b"7"), ("gpu-memory", b"1g"), ("other", b"kept")]);
    let whole = Configuration {
        name: Some("my env; $(id)".to_owned()),
        gpus: Some(2),
        gpu_memory: Some(MemoryAmount::from_person("4g").unwrap()),
    };
    save(folder.path(), &whole).unwrap();
    assert_eq!(load(folder.path()).unwrap(), whole);
    save(folder.path(), &Configuration::default()).unwrap();
    assert_eq!(load(folder.path()).unwrap(), Configuration::default());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["other"]);
    fs::write(folder.path().join("name"), "\n").unwrap();
    fs::write(folder.path().join("gpus"), " 3\n").unwrap();
    assert_eq!(load(folder.path()).unwrap(), Configuration { gpus: Some(3), ..Configuration::default() });
}

#[test]
fn the_error_of_an_invalid_value_is_one_line() {
    let long = "x".repeat(129);
    for (file, content, words) in [
        ("gpus", "-1".as_bytes(), "'-1' is not a number of devices"),
        ("gpus", b"two", "'two' is not a number of devices"),
        ("gpus", b"99999999999", "is not a number of devices"),
        ("gpus", b"\x1b[2J\n1", r"'\u{1b}[2J\n1' is not"),
        ("gpu-memory", b"abc", "is not a number"),
        ("gpu-memory", b"1.5g", "not a whole number"),
        ("gpu-memory", b"4", "means 4 bytes"),
        ("name", b"a\nb", "cannot be printed"),
        ("name", b"\x1b]0;title\x07", "cannot be printed"),
        ("name", "a\u{202e}b".as_bytes(), "cannot be printed"),
        ("name", b"\xff\xfe", "it is not UTF-8"),
        ("name", long.as_bytes(), "at most 128 characters"),
        ("name", &[b'x'; 1 << 20], "more than 1024 bytes"),
    ] {
        let folder = folder(&[(file, content)]);
        let message = load(folder.path()).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
        assert!(message.starts_with(&format!("cannot use {}", folder.path().join(file).display())), "{message}");
        assert!(!message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn links_and_pipes_are_not_followed() {
    let secret = folder(&[("name", b"secret")]);
    let (target, link) = (secret.path().join("name"), secret.path().join("link"));
    let pipe = |path: &Path| rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let refused = |form: Form, path: &Path, why: &str| {
        let message = Source { form, path: path.to_owned() }.load().unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    };
    symlink(secret.path(), &link).unwrap();
    refused(Form::Folder, &link, "symbolic link");

    let folder = folder(&[]);
    symlink(&target, folder.path().join("name")).unwrap();
    refused(Form::Folder, folder.path(), "symbolic link");
    // Saving replaces the link, and not its target.
    let other = Configuration { name: Some("mine".to_owned()), ..Configuration::default() };
    save(folder.path(), &other).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "secret");
    assert_eq!(load(folder.path()).unwrap(), other);
    pipe(&folder.path().join("gpus"));
    refused(Form::Folder, folder.path(), "not a file");

    let file = folder.path().join("genv.toml");
    symlink(&target, &file).unwrap();
    refused(Form::GenvToml, &file, "it is a symbolic link. ");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(Form::GenvToml, &file, "it is not a file. ");
    fs::remove_dir(&file).unwrap();
    pipe(&file);
    refused(Form::GenvToml, &file, "it is not a file. ");
}

#[test]
fn a_failed_save_changes_no_file() {
    let folder = folder(&[("name", b"kept")]);
    fs::create_dir(folder.path().join("gpus")).unwrap();
    let other = Configuration { gpus: Some(1), name: Some("kept".to_owned()), ..Configuration::default() };
    let message = save(folder.path(), &other).unwrap_err().to_string();
    assert!(message.contains("cannot save") && message.contains("gpus"), "{message}");
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 2);
}
