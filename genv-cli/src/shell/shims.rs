//! Finds the folder of the shims `nvidia-smi`, `docker` and `podman`. An environment adds this folder to PATH.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder of this installation's shims, if it exists and can be part of PATH.
pub(crate) fn folder() -> Option<OsString> {
    let program = env::current_exe().ok()?;
    let found = beside(program.parent()?)?;
    // A colon separates entries of PATH.
    (!found.as_os_str().as_encoded_bytes().contains(&b':')).then(|| found.into_os_string())
}

/// `lib/genv/shims` of an installation, or `shims` beside the program.
fn beside(programs: &Path) -> Option<PathBuf> {
    let installed = programs.parent().map(|prefix| prefix.join("lib/genv/shims"));
    let candidates = installed.into_iter().chain([programs.join("shims")]);
    candidates.into_iter().find(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_folder_comes_before_one_beside_the_program() {
        let prefix = tempfile::tempdir().unwrap();
        let programs = prefix.path().join("bin");
        assert_eq!(beside(&programs), None);
        let near = programs.join("shims");
        std::fs::create_dir_all(&near).unwrap();
        assert_eq!(beside(&programs), Some(near));
        let installed = prefix.path().join("lib/genv/shims");
        std::fs::create_dir_all(&installed).unwrap();
        assert_eq!(beside(&programs), Some(installed));
    }
}
