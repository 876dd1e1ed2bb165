//! Long flags with one hyphen, as in genv 1.4.3.

use std::ffi::OsString;

const LONG_WITH_ONE_HYPHEN: [&str; 2] = ["-host", "-hostfile"];

/// Replaces one hyphen by two hyphens in the long flags of `genv remote`.
pub(in crate::commands) fn with_two_hyphens(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut before = words.iter().skip(1).take_while(|word| *word != "remote");
    let only_flags = before.all(|word| {
        let word = word.to_string_lossy();
        word.starts_with("--color") || ["auto", "always", "never"].contains(&&*word)
    });
    let Some(remote) = words.iter().position(|word| word == "remote").filter(|_| only_flags) else {
        return words;
    };
    for word in words.iter_mut().skip(remote + 1) {
        let Some(text) = word.to_str() else {
            continue;
        };
        if text == "--" {
            break;
        }
        let flag = text.split_once('=').map_or(text, |(flag, _)| flag);
        if LONG_WITH_ONE_HYPHEN.contains(&flag) {
            *word = format!("-{text}").into();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_flags_of_remote_get_a_second_hyphen() {
        for (line, expected) in [
            ("genv remote -host a devices", "genv remote --host a devices"),
            ("genv --color never remote -hostfile=f envs", "genv --color never remote --hostfile=f envs"),
            ("genv remote -H -host envs", "genv remote -H --host envs"),
            ("genv exec -- remote -host x", "genv exec -- remote -host x"),
            ("genv remote -- -host", "genv remote -- -host"),
            ("genv -host", "genv -host"),
            ("genv", "genv"),
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            let spelled = with_two_hyphens(words).join(OsString::from(" ").as_os_str());
            assert_eq!(spelled, expected);
        }
    }
}
