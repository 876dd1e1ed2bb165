//! Web configuration files for tests.

use std::fs;
use std::path::{Path, PathBuf};

use genv_web::{Limits, WebConfig};
use tempfile::TempDir;

use crate::site::Site;

/// A web configuration file in a folder of its own.
pub(crate) struct ConfigFile {
    folder: TempDir,
}

impl ConfigFile {
    pub(crate) fn new(text: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        file.write("web.yml", text);
        file
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("web.yml")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        fs::write(self.folder.path().join(name), content).unwrap();
    }

    pub(crate) fn open(&self) -> WebConfig {
        WebConfig::open(&self.path()).unwrap()
    }

    /// What is said of a file that is refused, its folder left out.
    pub(crate) fn refusal(&self) -> String {
        let error = WebConfig::open(&self.path()).unwrap_err().to_string();
        error.replace(&format!("{}/", self.folder.path().display()), "")
    }

    pub(crate) async fn serve(&self, limits: Limits) -> Site {
        Site::with_config(limits, Some(self.open())).await
    }
}
