//! Quotes a value as one word of a shell.

use super::Shell;

/// The word that `shell` reads as `value`. Zero bytes are omitted: a variable cannot contain them.
pub(crate) fn quote(shell: Shell, value: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in value {
        match (shell, byte) {
            (_, 0) => {}
            (Shell::Bash | Shell::Zsh, b'\'') => word.extend(br"'\''"),
            // Within single quotes fish interprets a backslash before these two characters.
            (Shell::Fish, b'\'' | b'\\') => word.extend([b'\\', byte]),
            _ => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_word_whatever_its_bytes() {
        assert_eq!(quote(Shell::Bash, b"a'; b"), br"'a'\''; b'");
        assert_eq!(quote(Shell::Zsh, b"'"), br"''\'''");
        assert_eq!(quote(Shell::Fish, br"a'\"), br"'a\'\\'");
        for shell in Shell::ALL {
            assert_eq!(quote(shell, b""), b"''");
            // A zero byte is omitted.
            assert_eq!(quote(shell, b"a\0b"), b"'ab'");
        }
    }
}
