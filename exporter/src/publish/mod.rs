//! `genv-exporter publish DIR`: the configuration of Prometheus, Alertmanager and Grafana that comes with the program,
//! with the addresses of one site in it.
//!
//! The [`bundle`] becomes files below a [`folder::Folder`]; a [`manifest`] there tells which of them somebody edited.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

pub(crate) mod address;
mod bundle;
mod flags;
mod folder;
mod manifest;

pub(crate) use flags::PublishFlags;
use folder::{Folder, FolderError};
use manifest::Manifest;

/// Where genv 1.x wrote what Grafana would read beside our files: a second default data source, with which it does
/// not start, and its dashboards once more.
const OF_GENV_1: [&str; 2] =
    ["grafana/provisioning/datasources/default.yml", "grafana/provisioning/dashboards/default.yml"];

/// What to publish, and where.
#[derive(Debug)]
pub(crate) struct PublishOptions {
    folder: PathBuf,
    addresses: bundle::Addresses,
    replace_edited: bool,
}

/// A file, and what is to be done about it.
struct Planned {
    path: &'static str,
    content: String,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is there already.
    Nothing,
    /// It is missing, or as it was published.
    Write,
    /// It was edited, and what is published has not changed since.
    Keep,
    /// It was edited, or is not ours, and what is published is something new.
    Refuse,
}

/// Writes the files, and tells on stdout which.
pub(crate) fn publish(options: &PublishOptions) -> Result<()> {
    let files = bundle::rendered(&options.addresses, &place(&options.folder)?);
    let folder = Folder::create(&options.folder)?;
    let known = Manifest::parse(&folder.read(manifest::NAME)?.unwrap_or_default());

    let mut planned = Vec::with_capacity(files.len());
    let mut published = Manifest::default();
    for (path, content) in files {
        let (parent, name) = folder.parent_of(path)?;
        let step = match parent.read(name)? {
            None => Step::Write,
            Some(there) if there == content.as_bytes() => Step::Nothing,
            Some(_) if options.replace_edited => Step::Write,
            Some(there) if known.lists(path, &there) => Step::Write,
            Some(_) if known.lists(path, content.as_bytes()) => Step::Keep,
            Some(_) => Step::Refuse,
        };
        published.add(path, content.as_bytes());
        planned.push(Planned { path, content, step });
    }
    let shown = options.folder.display();
    let paths = |step| {
        let of_step = planned.iter().filter(move |file| file.step == step);
        let paths: Vec<_> = of_step.map(|file| file.path).collect();
        paths.join(", ")
    };
    let refused = paths(Step::Refuse);
    if !refused.is_empty() {
        bail!(
            "cannot publish to {shown}: these files were edited, or come from elsewhere, and would change: {refused}. \
             Nothing was written. Publish to another folder to compare, or replace them with --force"
        );
    }

    // Listing the new files before they are there lets a run that was cut short be repeated.
    let both = known.united(&published);
    write_manifest(&folder, &known, &both)?;
    for file in planned.iter().filter(|file| file.step == Step::Write) {
        let (parent, name) = folder.parent_of(file.path)?;
        parent.replace(name, file.content.as_bytes())?;
        print_path(&options.folder.join(file.path))?;
    }
    write_manifest(&folder, &both, &published)?;
    let kept = paths(Step::Keep);
    if !kept.is_empty() {
        tell(&format!("kept as edited in {shown}: {kept}. --force replaces them"));
    }
    for path in OF_GENV_1 {
        let (parent, name) = folder.parent_of(path)?;
        if parent.read(name)?.is_some() {
            tell(&format!(
                "Grafana will read {shown}/{path} as well, which genv 1.x wrote, and may not start with both. Remove it"
            ));
        }
    }
    Ok(())
}

/// The folder as Grafana's files name it: absolute, and without what they give a meaning of their own.
fn place(folder: &Path) -> Result<String> {
    let absolute = std::path::absolute(folder)
        .map_err(|error| anyhow!("cannot publish to '{}': {error}. Name a folder", folder.display()))?;
    let refused = |why: &str| {
        anyhow!(
            "cannot publish to {}: its path {why}, which the configuration of Grafana cannot hold. Name another folder",
            absolute.display()
        )
    };
    let Some(text) = absolute.to_str() else {
        return Err(refused("is not UTF-8"));
    };
    match text.chars().find(|c| c.is_control() || "$%`'\"\\#;:".contains(*c)) {
        Some(character) => Err(refused(&format!("holds {character:?}"))),
        None => Ok(text.to_owned()),
    }
}

fn write_manifest(folder: &Folder, there: &Manifest, wanted: &Manifest) -> Result<(), FolderError> {
    if there == wanted {
        return Ok(());
    }
    folder.replace(manifest::NAME, wanted.to_text().as_bytes())
}

fn print_path(path: &Path) -> Result<()> {
    match writeln!(io::stdout(), "{}", path.display()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot print what was written: {error}. Mend standard output and publish again"))
        }
        _ => Ok(()),
    }
}

fn tell(words: &str) {
    // Nobody is left to tell if that fails.
    let _ = writeln!(io::stderr(), "genv-exporter: {words}.");
}
