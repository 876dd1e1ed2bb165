//! What people may give as the value of a flag, and what they are told if they give something else.

use genv_core::model::{MemoryAmount, MemoryAmountError};

use crate::local_config::check_name;

/// How long the id of an environment may be: those of containers and kernels have up to 64 characters.
const MOST_ID_CHARACTERS: usize = 128;

/// A number of devices.
pub(crate) fn gpus(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "it is not a number of devices: write 0, 1, 2 and so on".to_owned())
}

/// The index of a device.
pub(crate) fn index(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "it is not the index of a device: 'genv devices' lists them".to_owned())
}

/// An amount of memory.
pub(crate) fn gpu_memory(text: &str) -> Result<MemoryAmount, MemoryAmountError> {
    MemoryAmount::from_person(text)
}

/// The name of an environment.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err(
            "a name has at least one character: 'genv config name --clear' removes it".to_owned(),
        );
    }
    check_name(text).map_err(|why| format!("{why}: choose another"))?;
    Ok(text.to_owned())
}

/// The id of an environment. Lists of ids are separated by spaces and commas.
pub(crate) fn eid(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().count() > MOST_ID_CHARACTERS {
        return Err(format!(
            "an id has 1 to {MOST_ID_CHARACTERS} characters: choose another"
        ));
    }
    if check_name(text).is_err() || text.contains(|it: char| it.is_whitespace() || it == ',') {
        return Err(
            "an id has no spaces, commas and unprintable characters: choose another".to_owned(),
        );
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_no_list_and_no_table_may_be_an_id() {
        for good in ["12496", "kernel-1", "$(id)", "'\"", "ü"] {
            assert_eq!(eid(good).as_deref(), Ok(good));
        }
        let long = "x".repeat(129);
        for bad in ["", " ", "a b", "a,b", "a\nb", "\x1b[2J", "\u{202e}", &long] {
            assert!(eid(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(name("my env; $(id)").as_deref(), Ok("my env; $(id)"));
        let long = "x".repeat(129);
        for bad in ["", "  ", "a\nb", "\x07", &long] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
