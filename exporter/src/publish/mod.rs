//! `genv-exporter publish DIR` writes the configuration of Prometheus, Alertmanager and Grafana with the addresses of one
//! site.
//!
//! The [`bundle`] becomes files below a [`folder::Folder`]. A [`manifest`] there has their hashes, so that edited files
//! are recognised. With `--mixin` and `--for-grafana-com` it writes what other installations take of these files.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

pub(crate) mod address;
mod bundle;
mod flags;
mod folder;
mod grafana_com;
mod manifest;

pub(crate) use flags::PublishFlags;
use folder::{Folder, FolderError};
use manifest::Manifest;

/// Files of genv 1.x that Grafana would read too: a second default data source, with which Grafana does not start, and
/// the same dashboards again.
const OF_GENV_1: [&str; 2] =
    ["grafana/provisioning/datasources/default.yml", "grafana/provisioning/dashboards/default.yml"];

/// The target folder, and the files with the addresses in them.
#[derive(Debug)]
pub(crate) struct PublishOptions {
    folder: PathBuf,
    form: Form,
    addresses: bundle::Addresses,
    replace_edited: bool,
}

/// The published files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// All, for the Prometheus, Alertmanager and Grafana of one site.
    Site,
    /// Rules, alerts and dashboards, as generated from a monitoring mixin.
    Mixin,
    /// Dashboards to upload to grafana.com.
    GrafanaCom,
}

/// A file, and its planned step.
struct PlannedFile {
    path: String,
    content: String,
    step: PublishStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishStep {
    /// The file is up to date.
    Nothing,
    /// The file is missing, or as it was published.
    Write,
    /// The file was edited, and the file to publish has not changed since.
    Keep,
    /// The file was edited or is not genv's, and differs from the file to publish.
    Refuse,
}

/// Writes the files, and prints their paths.
pub(crate) fn publish(options: &PublishOptions) -> Result<()> {
    let files = match options.form {
        Form::Site => bundle::rendered(&options.addresses, &grafana_path(&options.folder)?),
        Form::Mixin => bundle::mixin(&options.addresses),
        Form::GrafanaCom => grafana_com::dashboards(),
    };
    let folder = Folder::create(&options.folder)?;
    let known = Manifest::parse(&folder.read(manifest::NAME)?.unwrap_or_default());

    let mut planned = Vec::with_capacity(files.len());
    let mut published = Manifest::default();
    for (path, content) in files {
        let (parent, name) = folder.parent_of(&path)?;
        let step = match parent.read(name)? {
            None => PublishStep::Write,
            Some(there) if there == content.as_bytes() => PublishStep::Nothing,
            Some(_) if options.replace_edited => PublishStep::Write,
            Some(there) if known.lists(&path, &there) => PublishStep::Write,
            Some(_) if known.lists(&path, content.as_bytes()) => PublishStep::Keep,
            Some(_) => PublishStep::Refuse,
        };
        published.add(&path, content.as_bytes());
        planned.push(PlannedFile { path, content, step });
    }
    let shown = options.folder.display();
    let paths = |step| {
        let of_step = planned.iter().filter(move |file| file.step == step);
        let paths: Vec<_> = of_step.map(|file| file.path.as_str()).collect();
        paths.join(", ")
    };
    let refused = paths(PublishStep::Refuse);
    if !refused.is_empty() {
        bail!(
            "cannot publish to {shown}: these files were edited, or come from elsewhere, and would change: {refused}. \
             Nothing was written. Publish to another folder to compare, or replace them with --force"
        );
    }

    // The new files are listed before they are written, so that an interrupted run can be repeated.
    let both = known.united(&published);
    write_manifest(&folder, &known, &both)?;
    for file in planned.iter().filter(|file| file.step == PublishStep::Write) {
        let (parent, name) = folder.parent_of(&file.path)?;
        parent.replace(name, file.content.as_bytes())?;
        print_path(&options.folder.join(&file.path))?;
    }
    write_manifest(&folder, &both, &published)?;
    let kept = paths(PublishStep::Keep);
    if !kept.is_empty() {
        print_note(&format!("kept as edited in {shown}: {kept}. --force replaces them"));
    }
    if options.form == Form::Site {
        for path in OF_GENV_1 {
            let (parent, name) = folder.parent_of(path)?;
            if parent.read(name)?.is_some() {
                print_note(&format!(
                    "Grafana will also read {shown}/{path} of genv 1.x, and may not start with both. Remove that file"
                ));
            }
        }
    }
    Ok(())
}

/// The absolute path of the folder for Grafana's files, without the special characters of these files.
fn grafana_path(folder: &Path) -> Result<String> {
    let absolute = std::path::absolute(folder)
        .map_err(|error| anyhow!("cannot publish to '{}': {error}. Name a folder", folder.display()))?;
    let refused = |why: &str| {
        anyhow!(
            "cannot publish to {}: its path {why}, which the configuration of Grafana does not support. Name another folder",
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
        // The reader has closed the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot print what was written: {error}. Mend standard output and publish again"))
        }
        _ => Ok(()),
    }
}

fn print_note(note: &str) {
    // A failed write to stderr cannot be reported.
    let _ = writeln!(io::stderr(), "genv-exporter: {note}.");
}
