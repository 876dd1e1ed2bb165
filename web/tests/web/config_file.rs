//! Web configuration files for tests.

use std::fs;
use std::path::{Path, PathBuf};

use genv_web::{Limits, WebConfig};
use tempfile::TempDir;

use crate::test_server::TestServer;

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

    /// Writes a file. A server takes a change once the file has settled.
    pub(crate) fn write(&self, name: &str, content: &str) {
        fs::write(self.folder.path().join(name), content).unwrap();
    }

    pub(crate) fn open(&self) -> WebConfig {
        WebConfig::open(&self.path()).unwrap()
    }

    /// The error of a refused file, without the path of its folder.
    pub(crate) fn refusal(&self) -> String {
        let error = WebConfig::open(&self.path()).unwrap_err().to_string();
        error.replace(&format!("{}/", self.folder.path().display()), "")
    }

    pub(crate) async fn serve(&self, limits: Limits) -> TestServer {
        TestServer::with_config(limits, Some(self.open())).await
    }
}
