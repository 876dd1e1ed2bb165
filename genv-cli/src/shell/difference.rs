//! The values of a shell before its environment, stored in one variable so that leaving restores them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// The variable with the difference. It is exported, so that a shell below this one can leave the environment too.
pub(crate) const VARIABLE: &str = "GENV_RESTORE";

/// The user's variables that an environment replaces.
pub(crate) const REPLACED: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

const PATH: &str = "PATH";
const SHOWN: &str = "SHOWN";
const LEASE: &str = "LEASE";
const PROMPT: &str = "PROMPT";

/// The changes by an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The former values of [`REPLACED`]; `None`: the variable was not set.
    pub(crate) replaced: [Option<OsString>; REPLACED.len()],
    /// The entry that was added to PATH.
    pub(crate) path_entry: Option<OsString>,
    /// Whether the prompt shows the environment.
    pub(crate) prompt: bool,
    /// The last value that genv gave `CUDA_VISIBLE_DEVICES`: any other value is the user's.
    pub(crate) shown: Option<OsString>,
    /// The given [reminders](super::reminder) of the lease.
    pub(crate) reminders: Option<OsString>,
}

impl Difference {
    /// Encodes the changes as words: `NAME=VALUE`, or `NAME` for a variable that was not set.
    pub(crate) fn encode(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for (name, value) in REPLACED.iter().zip(&self.replaced) {
            words.push(match value {
                Some(value) => format!("{name}={}", escape(value)),
                None => (*name).to_owned(),
            });
        }
        if let Some(entry) = &self.path_entry {
            words.push(format!("{PATH}={}", escape(entry)));
        }
        if self.prompt {
            words.push(PROMPT.to_owned());
        }
        if let Some(shown) = &self.shown {
            words.push(format!("{SHOWN}={}", escape(shown)));
        }
        if let Some(reminders) = &self.reminders {
            words.push(format!("{LEASE}={}", escape(reminders)));
        }
        words.join(" ")
    }

    /// Decodes the text of [`Difference::encode`]. Unknown words are ignored.
    pub(crate) fn decode(text: &OsStr) -> Self {
        let mut difference = Self::default();
        for word in text.as_bytes().split(|&byte| byte == b' ') {
            let mut parts = word.splitn(2, |&byte| byte == b'=');
            let name = parts.next().unwrap_or_default();
            let value = parts.next().map(unescape);
            if let Some(position) = REPLACED.iter().position(|known| known.as_bytes() == name) {
                difference.replaced[position] = value;
            } else if name == PATH.as_bytes() {
                difference.path_entry = value;
            } else if name == PROMPT.as_bytes() {
                difference.prompt = true;
            } else if name == SHOWN.as_bytes() {
                difference.shown = value;
            } else if name == LEASE.as_bytes() {
                difference.reminders = value;
            }
        }
        difference
    }
}

/// Encodes all bytes except letters, digits and `/._-,:` as `%XX`.
fn escape(value: &OsStr) -> String {
    let mut text = String::new();
    for &byte in value.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-,:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

fn unescape(text: &[u8]) -> OsString {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.and_then(|digits| str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                value.push(byte);
                rest = &after[2..];
            }
            None => {
                value.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = OsString> {
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(OsString::from_vec)
    }

    proptest! {
        #[test]
        fn an_encoded_difference_is_decoded(
            replaced in [proptest::option::of(bytes()), proptest::option::of(bytes())],
            path_entry in proptest::option::of(bytes()),
            prompt: bool,
            shown in proptest::option::of(bytes()),
            reminders in proptest::option::of(bytes()),
        ) {
            let difference = Difference { replaced, path_entry, prompt, shown, reminders };
            prop_assert_eq!(Difference::decode(OsStr::new(&difference.encode())), difference);
        }

        #[test]
        fn any_text_can_be_decoded(text in bytes()) {
            Difference::decode(&text);
        }
    }

    #[test]
    fn absent_and_empty_values_differ() {
        let difference = Difference { replaced: [None, Some(OsString::new())], ..Difference::default() };
        assert_eq!(difference.encode(), "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES=");
    }
}
