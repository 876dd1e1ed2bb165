//! The code that sets up genv in a shell, and the code that removes genv.

use std::env;
use std::path::{Path, PathBuf};

use super::quote::quote;
use super::{PROTOCOL, Shell};

/// The placeholders in the templates: the shell's name, the protocol's version, the program, and the prefixes of lines for
/// bash or zsh alone.
const MARKS: [&str; 5] = ["@SHELL@", "@PROTOCOL@", "@PROGRAM@", "@bash@ ", "@zsh@ "];

/// The code that defines the functions, and updates a shell with inherited variables of an environment.
pub(crate) fn init(shell: Shell) -> String {
    code_of(shell, &program())
}

fn code_of(shell: Shell, program: &Path) -> String {
    let [name, protocol, program_mark, bash, zsh] = MARKS;
    let template = match shell {
        Shell::Bash | Shell::Zsh => include_str!("templates/genv.sh"),
        Shell::Fish => include_str!("templates/genv.fish"),
    };
    let others = match shell {
        Shell::Bash => zsh,
        Shell::Zsh | Shell::Fish => bash,
    };
    let mut code = String::new();
    for line in template.lines().filter(|line| !line.contains(others)) {
        code.push_str(&line.replace(zsh, "").replace(bash, ""));
        code.push('\n');
    }
    let program = quote(shell, program.as_os_str().as_encoded_bytes());
    code.replace(name, shell.name())
        .replace(protocol, &PROTOCOL.to_string())
        .replace(program_mark, &String::from_utf8_lossy(&program))
}

/// This program, by the path of its call: a link still works after an upgrade removes its target.
fn program() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    let is_own = |it: &PathBuf| it.canonicalize().is_ok_and(|it| it == own);
    let called = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = if called.is_absolute() {
        Some(called).filter(is_own)
    } else {
        let mut candidates = env::split_paths(&folders).filter(|it| it.is_absolute()).map(|it| it.join(&called));
        candidates.find(is_own)
    };
    found.unwrap_or(own)
}

/// The code that leaves the environment and removes the functions.
pub(crate) const fn deinit(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash | Shell::Zsh => include_str!("templates/deinit.sh"),
        Shell::Fish => include_str!("templates/deinit.fish"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_filled_in_with_the_path_as_one_word() {
        for shell in Shell::ALL {
            let path = Path::new("/opt/it's $HOME/genv");
            let word = String::from_utf8(quote(shell, path.as_os_str().as_encoded_bytes())).unwrap();
            assert!(code_of(shell, path).contains(&word), "{word}");
            let code = init(shell);
            assert!(code.contains(&format!("{PROTOCOL} {} ", shell.name())), "{code}");
            assert!(MARKS.iter().all(|mark| !code.contains(mark)), "{code}");
        }
    }

    #[test]
    fn deinit_removes_all_functions_of_init() {
        for shell in Shell::ALL {
            let init = init(shell);
            let defined = init.lines().filter_map(|line| line.strip_prefix("function "));
            let names: Vec<&str> = defined.filter_map(|rest| rest.split([' ', ';']).next()).collect();
            assert!(names.contains(&"genv"), "{names:?}");
            for name in names {
                let removed = deinit(shell).split_whitespace().any(|word| word == name);
                assert!(removed, "{} keeps {name}", shell.name());
            }
        }
    }
}
