//! The rules in force, and taking over the file when it changes.
//!
//! [`Watched`] decides when a changed file is complete. A beginning of a file may be valid, and without its `never:` it
//! would end processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use genv_core::files::Watched;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::config::{Config, Mode, PeerFlags, read};

/// Where rules come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, which may change.
    File(PathBuf),
    /// The command line.
    Flags(Box<PeerFlags>),
}

/// What the command line says, whatever the file does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// `--dry-run` or `--enforce`.
    pub mode: Option<Mode>,
    /// `--interval`.
    pub interval: Option<Duration>,
}

/// The rules in force and how they came to be.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The rules.
    pub config: Arc<Config>,
    /// The rules as they were written.
    pub written: Arc<Written>,
    /// What they were read from, in words.
    pub source: String,
    /// Unix time at which they were read.
    pub loaded_seconds: f64,
    /// Why the file as it is now is not in force.
    pub error: Option<String>,
}

/// Rules as somebody wrote them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// The text of a file.
    Yaml(String),
    /// Flags of genv 1.4.3.
    Flags(PeerFlags),
}

/// Keeps the rules in force.
#[derive(Debug)]
pub struct Rules {
    file: Option<Watched>,
    overrides: Overrides,
    in_force: InForce,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// What is in force is what the file says, or what was refused before.
    Same,
    /// Other rules are in force.
    Loaded,
    /// The file cannot be used; the rules in force stay.
    Refused,
}

impl Rules {
    /// Reads the rules for the first time.
    ///
    /// # Errors
    /// The file cannot be used: with its place, why, and a snippet.
    pub fn open(source: Source, overrides: Overrides, now_seconds: f64) -> Result<Self, genv_core::yaml::Error> {
        let (file, config, written, source) = match source {
            Source::Flags(flags) => {
                (None, Config::from_flags(&flags), Written::Flags(*flags), "genv 1.4.3's flags".to_owned())
            }
            Source::File(path) => {
                // Whoever is told of it may be in another folder.
                let source = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
                let source = source.display().to_string();
                let mut file = Watched::new(path);
                let (config, written) = file.read_now(load)?;
                (Some(file), config, written, source)
            }
        };
        Ok(Self {
            file,
            overrides,
            in_force: InForce {
                config: Arc::new(overrides.applied_to(config)),
                written: Arc::new(written),
                source,
                loaded_seconds: now_seconds,
                error: None,
            },
        })
    }

    /// The rules.
    pub fn in_force(&self) -> &InForce {
        &self.in_force
    }

    /// The file that the rules come from, unless the command line is.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(Watched::path)
    }

    /// What is notified when the file may have changed, besides the looks of each interval.
    pub fn wake(&self) -> Arc<Notify> {
        self.file.as_ref().map(Watched::wake).unwrap_or_default()
    }

    /// Looks whether the file has changed and has settled, and takes it over if it can be used. With `now`, the file is
    /// read as it is.
    pub fn look(&mut self, now: bool, now_seconds: f64) -> Look {
        let Some(file) = &mut self.file else {
            return Look::Same;
        };
        let loaded = if now { Some(file.read_now(load)) } else { file.changed(load) };
        let Some(loaded) = loaded else {
            return Look::Same;
        };
        let in_force = &mut self.in_force;
        match loaded {
            Ok((config, written)) => {
                let same = config.hash == in_force.config.hash && in_force.error.is_none();
                if same && !now {
                    return Look::Same;
                }
                in_force.error = None;
                in_force.loaded_seconds = now_seconds;
                in_force.config = Arc::new(self.overrides.applied_to(config));
                in_force.written = Arc::new(written);
                Look::Loaded
            }
            Err(error) => {
                let error = error.to_string();
                let known = in_force.error.replace(error.clone()) == Some(error);
                if known && !now { Look::Same } else { Look::Refused }
            }
        }
    }
}

impl Overrides {
    fn applied_to(self, mut config: Config) -> Config {
        config.mode = self.mode.unwrap_or(config.mode);
        config.interval = self.interval.unwrap_or(config.interval);
        config
    }
}

fn load(path: &Path) -> Result<(Config, Written), genv_core::yaml::Error> {
    let text = read(path)?;
    let config = Config::parse(&path.display().to_string(), &text)?;
    Ok((config, Written::Yaml(text)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const ONE: &str = "version: 1\nrules: [{kind: env-devices}]\n";
    const TWO: &str = "version: 1\nrules: [{kind: env-devices}, {kind: env-memory}]\n";

    fn open(path: &Path) -> Rules {
        let source = Source::File(path.to_owned());
        Rules::open(source, Overrides::default(), 1.0).unwrap()
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("enforcer.yaml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn rules(rules: &Rules) -> usize {
        rules.in_force().config.rules.len()
    }

    /// Looks until the file has settled.
    fn settled(rules: &mut Rules) -> Look {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut look = Look::Same;
        while look == Look::Same && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
            look = rules.look(false, 3.0);
        }
        assert_eq!(rules.look(false, 4.0), Look::Same, "it is read once");
        look
    }

    #[test]
    fn a_beginning_of_a_file_is_never_in_force() {
        let (_folder, path) = written(ONE);
        let mut rules = open(&path);
        let mut file = File::create(&path).unwrap();
        for slice in ["version: 1\n", "rules: [{kind: env-devices}, {kind: env-memory}]\n", "never: {users: [root]}\n"]
        {
            file.write_all(slice.as_bytes()).unwrap();
            let end = Instant::now() + Duration::from_millis(1200);
            while Instant::now() < end {
                assert_eq!(rules.look(false, 2.0), Look::Same);
                thread::sleep(Duration::from_millis(5));
            }
        }
        drop(file);
        assert_eq!(settled(&mut rules), Look::Loaded);
        assert!(rules.in_force().config.never.users.contains("root"));
    }

    #[test]
    fn a_file_is_taken_over_however_it_is_replaced() {
        let (folder, path) = written(ONE);
        let mut written = open(&path);
        assert_eq!(written.look(false, 2.0), Look::Same);
        fs::write(&path, TWO).unwrap();
        assert_eq!(settled(&mut written), Look::Loaded);
        assert_eq!(rules(&written), 2);
        let new = folder.path().join("new");
        fs::write(&new, ONE).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!(settled(&mut written), Look::Loaded);
        assert_eq!(rules(&written), 1);

        // As Kubernetes does: enforcer.yaml -> ..data/enforcer.yaml, ..data -> ..VERSION, replaced by a rename.
        let map = folder.path().join("map");
        for (version, text) in [("..1", ONE), ("..2", TWO)] {
            fs::create_dir_all(map.join(version)).unwrap();
            fs::write(map.join(version).join("enforcer.yaml"), text).unwrap();
        }
        symlink("..1", map.join("..data")).unwrap();
        symlink("..data/enforcer.yaml", map.join("enforcer.yaml")).unwrap();
        let mut swapped = open(&map.join("enforcer.yaml"));
        assert_eq!(rules(&swapped), 1);
        symlink("..2", map.join("..data_tmp")).unwrap();
        fs::rename(map.join("..data_tmp"), map.join("..data")).unwrap();
        assert_eq!(settled(&mut swapped), Look::Loaded);
        assert_eq!(rules(&swapped), 2);
    }

    #[test]
    fn promise_10_a_bad_configuration_keeps_the_last_good_one() {
        let (_folder, path) = written(ONE);
        let mut kept = open(&path);
        let hash = kept.in_force().config.hash.clone();
        for bad in ["version: 1\nrulez: []\n", "", "\u{0}", "version: 1\nrules: [{kind: x}]\n"] {
            fs::write(&path, bad).unwrap();
            assert_eq!(settled(&mut kept), Look::Refused, "{bad:?}");
            assert_eq!(kept.in_force().config.hash, hash);
            assert!(kept.in_force().error.is_some());
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(settled(&mut kept), Look::Refused);
        assert_eq!(rules(&kept), 1);
        fs::write(&path, ONE).unwrap();
        assert_eq!(settled(&mut kept), Look::Loaded);
        assert_eq!(kept.in_force().error, None);
        assert_eq!(kept.in_force().loaded_seconds, 3.0);
    }

    #[test]
    fn a_signal_reads_at_once_and_says_so_again() {
        let (_folder, path) = written(ONE);
        let mut rules = open(&path);
        assert_eq!(rules.look(true, 2.0), Look::Loaded);
        fs::write(&path, "x").unwrap();
        assert_eq!(rules.look(true, 3.0), Look::Refused);
        assert_eq!(rules.look(true, 4.0), Look::Refused);
    }

    #[test]
    fn whoever_is_in_another_folder_is_told_of_the_same_file() {
        let rules = open(Path::new("../packaging/enforcer.yaml"));
        let source = Path::new(&rules.in_force().source);
        assert!(source.is_absolute(), "{source:?}");
        assert!(source.ends_with("packaging/enforcer.yaml"), "{source:?}");
    }

    #[test]
    fn what_the_command_line_says_outlives_a_change() {
        let (_folder, path) = written(ONE);
        let overrides = Overrides { mode: Some(Mode::Enforce), interval: Some(Duration::from_secs(7)) };
        let mut rules = Rules::open(Source::File(path.clone()), overrides, 1.0).unwrap();
        fs::write(&path, TWO).unwrap();
        assert_eq!(settled(&mut rules), Look::Loaded);
        let config = &rules.in_force().config;
        assert_eq!(config.mode, Mode::Enforce);
        assert_eq!(config.interval, Duration::from_secs(7));
    }
}
