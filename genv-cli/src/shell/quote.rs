//! Quoting: a value becomes one word of a shell, of which no byte is read as anything but itself.

use super::Shell;

/// The word that `shell` reads as `value`. A variable cannot hold a zero byte: it is left out.
pub(crate) fn quote(shell: Shell, value: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for &byte in value {
        match (shell, byte) {
            (_, 0) => {}
            (Shell::Bash | Shell::Zsh, b'\'') => word.extend(br"'\''"),
            // Between single quotes fish still reads these two after a backslash.
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
    fn a_quote_ends_nothing() {
        assert_eq!(quote(Shell::Bash, b"a'; b"), br"'a'\''; b'");
        assert_eq!(quote(Shell::Zsh, b"'"), br"''\'''");
        assert_eq!(quote(Shell::Fish, br"a'\"), br"'a\'\\'");
    }

    #[test]
    fn an_empty_value_is_a_word_too() {
        for shell in Shell::ALL {
            assert_eq!(quote(shell, b""), b"''");
        }
    }

    #[test]
    fn zero_bytes_are_left_out() {
        for shell in Shell::ALL {
            assert_eq!(quote(shell, b"a\0b"), b"'ab'");
        }
    }
}
