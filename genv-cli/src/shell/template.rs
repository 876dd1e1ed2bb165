//! The code that sets a shell up, and that removes it again.

use super::{PROTOCOL, Shell};

/// What stands for the protocol's version in the templates.
const PROTOCOL_MARK: &str = "@PROTOCOL@";

/// The code that defines the functions, and joins or leaves an environment that the shell inherited.
pub(crate) fn init(shell: Shell) -> String {
    let template = match shell {
        Shell::Bash => include_str!("templates/genv.bash"),
        Shell::Zsh => include_str!("templates/genv.zsh"),
        Shell::Fish => include_str!("templates/genv.fish"),
    };
    template.replace(PROTOCOL_MARK, &PROTOCOL.to_string())
}

/// The code that leaves the environment and removes the functions.
pub(crate) const fn deinit(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("templates/deinit.bash"),
        Shell::Zsh => include_str!("templates/deinit.zsh"),
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
            assert!(!code.contains(PROTOCOL_MARK), "{code}");
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
