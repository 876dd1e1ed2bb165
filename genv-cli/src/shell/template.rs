//! The code that sets a shell up, and that removes it again.

use super::{PROTOCOL, Shell};

/// In the templates: the shell's name, the protocol's version, and what begins a line that is for zsh alone.
const MARKS: [&str; 3] = ["@SHELL@", "@PROTOCOL@", "@zsh@ "];

/// The code that defines the functions, and joins or leaves an environment that the shell inherited.
pub(crate) fn init(shell: Shell) -> String {
    let [name, protocol, zsh] = MARKS;
    let template = match shell {
        Shell::Bash | Shell::Zsh => include_str!("templates/genv.sh"),
        Shell::Fish => include_str!("templates/genv.fish"),
    };
    let mut code = String::new();
    for line in template.lines() {
        if shell == Shell::Zsh || !line.contains(zsh) {
            code.push_str(&line.replace(zsh, ""));
            code.push('\n');
        }
    }
    code.replace(name, shell.name())
        .replace(protocol, &PROTOCOL.to_string())
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
    fn every_template_is_filled_in() {
        for shell in Shell::ALL {
            let code = init(shell);
            assert!(
                code.contains(&format!("{PROTOCOL} {} ", shell.name())),
                "{code}"
            );
            assert!(MARKS.iter().all(|mark| !code.contains(mark)), "{code}");
        }
    }

    #[test]
    fn what_init_defines_deinit_removes() {
        for shell in Shell::ALL {
            let init = init(shell);
            let defined = init
                .lines()
                .filter_map(|line| line.strip_prefix("function "));
            let names: Vec<&str> = defined
                .filter_map(|rest| rest.split([' ', ';']).next())
                .collect();
            assert!(names.contains(&"genv"), "{names:?}");
            for name in names {
                let removed = deinit(shell).split_whitespace().any(|word| word == name);
                assert!(removed, "{} keeps {name}", shell.name());
            }
        }
    }
}
