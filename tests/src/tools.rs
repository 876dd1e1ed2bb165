//! Programs that are not ours: what `scripts/debian-tools` has fetched.

use std::path::{Path, PathBuf};

/// The program `name` of `tool`, as `scripts/debian-tools` names both: `("nvidia-smi-550", "nvidia-smi")`.
pub fn program(tool: &str, name: &str) -> PathBuf {
    find(tool, name).unwrap_or_else(|| {
        panic!("cannot find {name}: no target/tools/{tool} was fetched. Run 'scripts/debian-tools {tool}'")
    })
}

/// As [`program`]; none where it was not fetched.
pub fn find(tool: &str, name: &str) -> Option<PathBuf> {
    fetched(&Path::new(tool).join("bin").join(name))
}

/// The folder of what is no program, as `scripts/debian-tools` names it.
pub fn folder(tool: &str) -> PathBuf {
    fetched(Path::new(tool)).unwrap_or_else(|| {
        panic!("cannot find target/tools/{tool}: it was not fetched. Run 'scripts/debian-tools {tool}'")
    })
}

fn fetched(relative: &Path) -> Option<PathBuf> {
    let relative = Path::new("tools").join(relative);
    build_folder().ancestors().map(|folder| folder.join(&relative)).find(|path| path.exists())
}

/// Where cargo puts the programs under test: the folder that `GENV_TEST_BUILD` names, otherwise that of this
/// program's own profile, such as `target/debug`.
pub fn build_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("GENV_TEST_BUILD") {
        return folder.into();
    }
    let program = std::env::current_exe().expect("the kernel tells where this program is");
    let folder = program.parent().expect("a program lies in a folder");
    if folder.ends_with("deps") {
        folder.parent().expect("deps lies in a folder").to_owned()
    } else {
        folder.to_owned()
    }
}
