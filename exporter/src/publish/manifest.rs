//! The hashes of the files that were published into a folder, by which edited files are recognised.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

/// Name of the manifest in the folder.
pub(crate) const NAME: &str = ".genv-published";

/// Hashes and paths. While a file is replaced it has both its old and its new hash. The text has the format of
/// `sha256sum --check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest(BTreeSet<(String, String)>);

impl Manifest {
    /// Parses a manifest. Malformed lines are skipped: a file that is not listed counts as edited.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let entries = text.lines().filter_map(|line| line.split_once("  "));
        Self(entries.map(|(hash, path)| (path.to_owned(), hash.to_owned())).collect())
    }

    /// Whether a file with this content was published.
    pub(crate) fn lists(&self, path: &str, content: &[u8]) -> bool {
        self.0.contains(&(path.to_owned(), hash(content)))
    }

    /// Lists a file with this content.
    pub(crate) fn add(&mut self, path: &str, content: &[u8]) {
        self.0.insert((path.to_owned(), hash(content)));
    }

    /// The union of both manifests.
    pub(crate) fn united(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    /// The text of the manifest.
    pub(crate) fn to_text(&self) -> String {
        let lines = self.0.iter().map(|(path, hash)| format!("{hash}  {path}\n"));
        lines.collect()
    }
}

fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_lists_added_files_and_survives_its_text() {
        let mut manifest = Manifest::default();
        manifest.add("a/b.yml", b"one");
        let read = Manifest::parse(manifest.to_text().as_bytes());
        assert_eq!(read, manifest);
        assert!(read.lists("a/b.yml", b"one"));
        assert!(!read.lists("a/b.yml", b"two"));
        assert!(!read.lists("a/c.yml", b"one"));
    }

    #[test]
    fn a_damaged_manifest_lists_nothing() {
        let damaged = Manifest::parse(b"\xff\xfe\nnonsense\n\n  \n");
        assert!(!damaged.lists("a/b.yml", b"one"));
    }
}
