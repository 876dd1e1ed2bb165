//! Tests of rules: hosts that a scenario describes, a clock that is turned, and what is to be found, said and done by
//! then. `docs/enforcement.md` explains the file.
//!
//! Everything but the clock and the signals is real: the collection that makes the snapshots, the rules, the plan and its
//! history.

mod control;
mod course;
mod expectations;
mod fact;
mod file;
mod stage;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use genv_core::progress::ProgressLine;
use genv_core::text::counted;
use genv_core::yaml::{self, Located, Place};
use genv_simulator::{Engine, ScenarioError};

use crate::config::{Config, read};
use course::{Course, Missing};
use file::{MissingEntry, RuleTestFile, TestEntry};

/// Runs the tests of the files, and prints to `out` how each went. `progress` names the test that runs. Tells whether all
/// passed.
///
/// # Errors
/// A file cannot be used: the error is a [`genv_core::yaml::Error`], which is wrong usage (exit code 2). Or `out` cannot
/// be written, or a thread cannot be started.
pub(crate) fn test(paths: &[PathBuf], out: &mut impl Write, progress: &ProgressLine) -> anyhow::Result<bool> {
    let files: Vec<TestFile> = paths.iter().map(|path| TestFile::open(path)).collect::<Result<_, _>>()?;
    let all: usize = files.iter().map(|file| file.tests.len()).sum();
    let (mut run, mut failed) = (0_u64, 0_u64);
    for file in &files {
        writeln!(out, "{}", file.source_name)?;
        for test in &file.tests {
            run += 1;
            progress.show(|| format!("genv-enforcer: test {run} of {all}: {}", test.name));
            let misses = test.run()?;
            if misses.is_empty() {
                writeln!(out, "  ok      {}", test.name)?;
                continue;
            }
            failed += 1;
            writeln!(out, "  FAILED  {}", test.name)?;
            for miss in misses {
                writeln!(out, "    {}", miss.replace('\n', "\n    "))?;
            }
        }
    }
    writeln!(out, "{}, {failed} failed", counted(run, "test"))?;
    out.flush()?;
    Ok(failed == 0)
}

/// A file of tests that was checked.
struct TestFile {
    source_name: String,
    tests: Vec<Test>,
}

/// One test that was checked.
struct Test {
    name: String,
    course: Course,
    expectations: expectations::Expectations,
}

impl TestFile {
    fn open(path: &Path) -> Result<Self, yaml::Error> {
        let source_name = path.display().to_string();
        Self::parse(&source_name, &read(path)?, path.parent().unwrap_or(Path::new(".")))
    }

    /// `folder` is where files that it names are looked for.
    fn parse(source_name: &str, text: &str, folder: &Path) -> Result<Self, yaml::Error> {
        let file: RuleTestFile = yaml::parse(source_name, text)?;
        let reader = Reader { source_name, text, folder };
        let config = reader.config(&file)?;
        if file.tests.value.is_empty() {
            return reader.refuse(file.tests.referenced, "there are no tests");
        }
        let tests = file.tests.value.iter().map(|entry| reader.test(entry, &config));
        Ok(Self { source_name: source_name.to_owned(), tests: tests.collect::<Result<_, _>>()? })
    }
}

impl Test {
    /// What was expected and did not come, and the other way round.
    fn run(&self) -> io::Result<Vec<String>> {
        let record = self.course.run()?;
        Ok(self.expectations.misses(&record))
    }
}

struct Reader<'a> {
    source_name: &'a str,
    text: &'a str,
    folder: &'a Path,
}

impl Reader<'_> {
    fn refuse<T>(&self, place: Place, message: impl Into<String>) -> Result<T, yaml::Error> {
        Err(yaml::Error::at(self.source_name, self.text, place, message))
    }

    fn config(&self, file: &RuleTestFile) -> Result<Config, yaml::Error> {
        match (&file.config, &file.config_file) {
            (Some(written), None) => Config::within(self.source_name, self.text, &written.value),
            (None, Some(path)) => Config::load(&self.folder.join(&path.value)),
            (Some(written), Some(_)) => self.refuse(written.referenced, "say either config or config_file"),
            (None, None) => self.refuse(file.tests.referenced, "tests of which rules? Say config or config_file"),
        }
    }

    fn engine(&self, entry: &Located<TestEntry>) -> Result<Engine, yaml::Error> {
        let engine = match (&entry.value.scenario, &entry.value.scenario_file) {
            (Some(written), None) => Engine::within(self.source_name, self.text, &written.value)?,
            (None, Some(path)) => match Engine::open(&self.folder.join(&path.value)) {
                Ok(engine) => engine,
                Err(ScenarioError::Invalid(error)) => return Err(error),
                Err(ScenarioError::Unreadable { path: file, reason }) => {
                    let file = file.display();
                    let message = format!("cannot read the scenario {file}: {reason}; name a file that is there");
                    return self.refuse(path.referenced, message);
                }
            },
            (Some(written), Some(_)) => {
                return self.refuse(written.referenced, "say either scenario or scenario_file");
            }
            (None, None) => {
                return self.refuse(entry.referenced, "on which hosts? Say scenario or scenario_file");
            }
        };
        let scenario = engine.scenario();
        let real = scenario.hosts.iter().find_map(|host| {
            let process = host.processes.iter().find(|process| process.facts.is_none())?;
            Some((&host.name, process.pid))
        });
        if let Some((host, pid)) = real {
            let message = format!(
                "process {pid} of {host} has no user, and so would be a real one of this machine: give it a user"
            );
            return self.refuse(entry.referenced, message);
        }
        if scenario.hosts.is_empty() {
            return self.refuse(entry.referenced, "the scenario has no host: add one under hosts");
        }
        Ok(engine)
    }

    /// Refuses the name of a rule that is not there.
    fn known_rule(&self, name: &Located<String>, config: &Config) -> Result<(), yaml::Error> {
        if config.rules.iter().any(|rule| rule.name == name.value) {
            return Ok(());
        }
        self.refuse(name.referenced, format!("there is no rule '{}'", name.value.escape_debug()))
    }

    /// Refuses groups of a user, and a stubborn process, that the scenario does not have.
    fn known_users_and_processes(&self, entry: &TestEntry, engine: &Engine) -> Result<(), yaml::Error> {
        for (user, _) in &entry.groups.0 {
            self.known_user(&user.value, user.referenced, engine)?;
        }
        let scenario = engine.scenario();
        for pid in &entry.stubborn {
            let hosts = scenario.hosts.iter();
            let mut processes = hosts.flat_map(|host| &host.processes);
            if !processes.any(|process| process.pid == pid.value.0) {
                let message = format!("the scenario has no process {}", pid.value.0);
                return self.refuse(pid.referenced, message);
            }
        }
        Ok(())
    }

    pub(super) fn known_user(&self, user: &str, place: Place, engine: &Engine) -> Result<(), yaml::Error> {
        let scenario = engine.scenario();
        let mut known = scenario.users.values();
        if user.starts_with("uid:") || known.any(|known| known == user) {
            return Ok(());
        }
        let message = format!("the scenario has no user '{}'", user.escape_debug());
        self.refuse(place, message)
    }

    fn missing(&self, entry: &TestEntry, engine: &Engine) -> Result<Vec<Missing>, yaml::Error> {
        let scenario = engine.scenario();
        let missing = entry.missing.iter().map(|window| {
            let MissingEntry { host, from, until } = &window.value;
            if !scenario.hosts.iter().any(|known| known.name == host.value) {
                let message = format!("the scenario has no host '{}'", host.value.escape_debug());
                return self.refuse(host.referenced, message);
            }
            let from = from.as_ref().map_or(Duration::ZERO, |from| from.value.0);
            if let Some(until) = until
                && until.value.0 <= from
            {
                return self.refuse(until.referenced, "it ends before it begins: until must be after from");
            }
            Ok(Missing { hostname: host.value.clone(), from, until: until.as_ref().map(|until| until.value.0) })
        });
        missing.collect()
    }

    fn test(&self, entry: &Located<TestEntry>, config: &Config) -> Result<Test, yaml::Error> {
        let engine = self.engine(entry)?;
        let mut config = config.clone();
        if let Some(interval) = &entry.value.interval {
            config.interval = genv_core::duration::parse_interval(&interval.value)
                .or_else(|error| self.refuse(interval.referenced, error.to_string()))?;
        }
        let missing = self.missing(&entry.value, &engine)?;
        self.known_users_and_processes(&entry.value, &engine)?;
        let control = self.control(&entry.value, &config, &engine)?;
        let expectations = self.expectations(&entry.value, &config)?;
        Ok(Test {
            name: entry.value.name.value.0.clone(),
            course: Course {
                engine: Arc::new(engine),
                groups: entry.value.groups(),
                stubborn: entry.value.stubborn.iter().map(|pid| pid.value.0).collect(),
                missing,
                control,
                until: expectations.until(),
                config,
            },
            expectations,
        })
    }
}
