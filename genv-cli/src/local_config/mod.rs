//! The configuration of environments in a directory: a folder `.genv` of genv 1.x, a file `genv.toml`, or the table
//! `[tool.genv]` of a `pyproject.toml`.
//!
//! The file may be part of another user's repository: genv treats its content as untrusted text.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt, fs};

use genv_core::proc::user_phrase;
use genv_core::state::Configuration;
use genv_core::state::allocate::DeviceKind;

pub(crate) use config_path::LocalConfigError;
use config_path::{ConfigPath, trusts};

use crate::output::harmless;

mod config_path;
mod folder;
mod toml_file;

/// The largest length of an environment's name.
const MOST_NAME_CHARACTERS: usize = 128;

/// The largest size of one value.
const MOST_BYTES: u64 = 1024;

/// The configuration of a new environment. Flags and defaults supply missing values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalConfig {
    pub(crate) configuration: Configuration,
    /// The accepted devices; only in TOML.
    pub(crate) kind: DeviceKind,
    /// The duration of the lease; only in TOML.
    pub(crate) lease: Option<Duration>,
}

/// A folder or file that configures environments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    form: Form,
    path: PathBuf,
}

/// The forms of a source, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Folder,
    GenvToml,
    Pyproject,
}

impl Form {
    const ALL: [Self; 3] = [Self::Folder, Self::GenvToml, Self::Pyproject];

    const fn name(self) -> &'static str {
        match self {
            Self::Folder => ".genv",
            Self::GenvToml => "genv.toml",
            Self::Pyproject => "pyproject.toml",
        }
    }

    /// The remedy of an error in the content.
    const fn correct(self) -> &'static str {
        match self {
            Self::Folder | Self::GenvToml => "Correct it, or remove the file",
            Self::Pyproject => "Correct it, or remove its table [tool.genv]",
        }
    }
}

impl Source {
    /// The sources of a directory, in the order of precedence.
    fn all(directory: &Path, forms: &[Form]) -> impl Iterator<Item = Self> {
        let sources = forms.iter().map(|form| Self { form: *form, path: directory.join(form.name()) });
        sources.filter(Self::exists)
    }

    /// The owner of the source; for a link the owner of the link, since a link is not read.
    fn owner(&self) -> Option<u32> {
        let found = fs::symlink_metadata(&self.path);
        found.ok().map(|found| found.uid())
    }

    fn exists(&self) -> bool {
        match self.form {
            // Links and other files are found too, so that reading them reports the error.
            Form::Folder | Form::GenvToml => fs::symlink_metadata(&self.path).is_ok(),
            Form::Pyproject => toml_file::has_table(&self.path),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory's folder `.genv`, which may not exist.
    pub(crate) fn folder(&self) -> PathBuf {
        self.path.with_file_name(Form::Folder.name())
    }

    /// The file that the directory's folder `.genv` takes precedence over.
    pub(crate) fn behind_folder(&self) -> Option<PathBuf> {
        let files = [Form::GenvToml, Form::Pyproject];
        Some(Self::all(self.path.parent()?, &files).next()?.path)
    }

    /// Reads the source.
    pub(crate) fn load(&self) -> Result<LocalConfig, LocalConfigError> {
        if self.form == Form::Folder {
            let configuration = folder::load(&self.path)?;
            return Ok(LocalConfig { configuration, ..LocalConfig::default() });
        }
        toml_file::load(&self.path, self.form)
    }

    /// Writes a configuration to the directory's folder `.genv`. The folder is created if only a file is the source.
    pub(crate) fn save(&self, configuration: &Configuration) -> Result<(), LocalConfigError> {
        let path = self.folder();
        if self.form != Form::Folder {
            folder::make(&path)?;
        }
        folder::save(&path, configuration)
    }
}

/// The result of the search for a source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// The source with precedence.
    pub(crate) source: Option<Source>,
    /// Nearer sources of other users, with their owners.
    skipped: Vec<(Source, u32)>,
    places: SearchPath,
}

impl Search {
    /// A note about skipped sources, if there are any.
    pub(crate) fn skipped(&self) -> Option<String> {
        let (source, owner) = self.skipped.first()?;
        let (path, owner) = (printable(source.path()), user_phrase(*owner));
        Some(match self.skipped.len() - 1 {
            0 => format!("{path} belongs to {owner}, and does not count"),
            more => format!("{path} belongs to {owner}, and does not count, as {more} more of other users"),
        })
    }

    /// The searched directories, in words.
    pub(crate) fn places(&self) -> String {
        self.places.to_string()
    }
}

/// Searches the nearest source: in the working directory, in the directories above it up to the root of the repository or
/// the home directory, and then in the home directory. Outside of repositories and the home directory, directories above do
/// not count. Sources of other users do not count: otherwise a user with write access to a shared directory could configure
/// the environments of others.
pub(crate) fn find() -> Search {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.map(PathBuf::from);
    let actual = env::current_dir().ok();
    let known = env::var_os("PWD").map(PathBuf::from);
    let known = known.filter(|known| known.is_absolute() && actual.as_ref().is_some_and(|actual| same(known, actual)));
    let places = SearchPath::new(known.as_deref(), actual.as_deref(), home.as_deref());
    let user = rustix::process::geteuid().as_raw();
    search(places, user)
}

fn search(places: SearchPath, user: u32) -> Search {
    let mut skipped = Vec::new();
    let mut counts = |source: &Source| match source.owner() {
        Some(owner) if !trusts(user, owner) => {
            skipped.push((source.clone(), owner));
            false
        }
        _ => true,
    };
    let source = places.all().find_map(|place| Source::all(place, &Form::ALL).find(&mut counts));
    Search { source, skipped, places }
}

/// The searched directories.
#[derive(Clone, Debug, Default)]
struct SearchPath {
    /// The working directory and the directories above it, by the path in PWD, which may have links.
    known: Vec<PathBuf>,
    /// The additional directories of the path without links.
    actual: Vec<PathBuf>,
    home: Option<PathBuf>,
    /// Whether the working directory is in neither a repository nor the home directory.
    outside: bool,
}

impl SearchPath {
    fn new(known: Option<&Path>, actual: Option<&Path>, home: Option<&Path>) -> Self {
        let mut places = Self { home: home.map(Path::to_owned), ..Self::default() };
        let (directories, inside) = places.above(known.or(actual));
        places.known = directories;
        let (directories, inside_too) = places.above(actual.filter(|_| known.is_some()));
        let is_new = |it: &PathBuf| !places.known.iter().any(|known| same(known, it));
        places.actual = directories.into_iter().filter(is_new).collect();
        places.outside = !inside && !inside_too;
        places
    }

    /// A directory and the directories above it, without the home directory. The flag: the directory is in the home directory or a
    /// repository.
    fn above(&mut self, directory: Option<&Path>) -> (Vec<PathBuf>, bool) {
        let mut above = Vec::new();
        for directory in directory.into_iter().flat_map(Path::ancestors) {
            if let Some(home) = &mut self.home
                && same(directory, home)
            {
                directory.clone_into(home);
                return (above, true);
            }
            above.push(directory.to_owned());
            if fs::symlink_metadata(directory.join(".git")).is_ok() {
                return (above, true);
            }
        }
        above.truncate(1);
        (above, false)
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.known.iter().chain(&self.actual).chain(&self.home)
    }
}

impl fmt::Display for SearchPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for walk in [&self.known, &self.actual] {
            match &walk[..] {
                [] => {}
                [one] => parts.push(printable(one)),
                [first, .., last] => {
                    parts.push(format!("{} up to {}", printable(first), printable(last)));
                }
            }
        }
        let home = self.home.as_deref();
        parts.extend(home.map(|home| format!("the home directory {}", printable(home))));
        f.write_str(&parts.join(", and in "))?;
        match self.known.first().filter(|_| self.outside) {
            Some(_) => f.write_str(". Directories above count only within a git repository or the home directory"),
            None => Ok(()),
        }
    }
}

fn printable(path: &Path) -> String {
    harmless(&path.display().to_string())
}

fn same(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Why a text cannot be the name of an environment.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.chars().count() > MOST_NAME_CHARACTERS {
        return Err(format!("a name has at most {MOST_NAME_CHARACTERS} characters"));
    }
    // Characters that change the direction or the position of later text count too.
    let unprintable = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if name.contains(unprintable) {
        return Err(format!("the name '{}' has characters that cannot be printed", shown(name)));
    }
    Ok(())
}

/// Makes a text of another user short and printable.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
