//! Parsers of the values of flags, with errors that contain a hint.

use genv_core::model::{MemoryAmount, MemoryAmountError};

use crate::local_config::check_name;

/// The largest length of an environment's id: ids of containers and kernels have up to 64 characters.
const MOST_ID_CHARACTERS: usize = 128;

/// The largest length of a part of a model's name: names of the driver have up to 95 characters.
const MOST_TYPE_CHARACTERS: usize = 95;

/// Parses a number of devices.
pub(crate) fn gpus(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "it is not a number of devices: write 0, 1, 2 and so on".to_owned())
}

/// Parses the index of a device. In a list, spaces may follow the commas.
pub(crate) fn index(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "it is not the index of a device: 'genv devices' lists them".to_owned())
}

/// Parses a part of a model's name.
pub(crate) fn gpu_type(text: &str) -> Result<String, String> {
    let text = text.trim();
    if !text.contains(char::is_alphanumeric) || text.chars().count() > MOST_TYPE_CHARACTERS {
        return Err(format!(
            "a type is a part of a model's name, such as a100, with at most {MOST_TYPE_CHARACTERS} characters: 'genv free' lists \
             models"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a pid, in the range of the state.
pub(crate) fn pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid: &i32| *pid > 0);
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    pid.ok_or_else(|| "it is not the pid of a process: 'ps' lists them".to_owned())
}

/// Parses a uid.
pub(crate) fn uid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "it is not the uid of a user: 'id -u' prints yours".to_owned())
}

/// Parses the name of a user.
pub(crate) fn username(text: &str) -> Result<String, String> {
    check_name(text).map_err(|why| format!("{why}: 'id -un' prints yours"))?;
    Ok(text.to_owned())
}

/// Parses the id of a Jupyter kernel, which is part of a file name.
pub(crate) fn kernel_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') || eid(text).is_err() {
        return Err("it is not the id of a kernel, as in kernel-ID.json of 'jupyter --runtime-dir'".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn gpu_memory(text: &str) -> Result<MemoryAmount, MemoryAmountError> {
    MemoryAmount::from_person(text)
}

/// Parses the name of an environment.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a name has at least one character: 'genv config name --clear' removes it".to_owned());
    }
    check_name(text).map_err(|why| format!("{why}: choose another"))?;
    Ok(text.to_owned())
}

/// Parses the id of an environment. Lists of ids have spaces and commas as separators.
pub(crate) fn eid(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().count() > MOST_ID_CHARACTERS {
        return Err(format!("an id has 1 to {MOST_ID_CHARACTERS} characters: choose another"));
    }
    if check_name(text).is_err() || text.contains(|it: char| it.is_whitespace() || it == ',') {
        return Err("an id has no spaces, commas and unprintable characters: choose another".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_must_not_break_lists_and_tables() {
        for good in ["12496", "kernel-1", "$(id)", "'\"", "ü"] {
            assert_eq!(eid(good).as_deref(), Ok(good));
        }
        let long = "x".repeat(129);
        for bad in ["", " ", "a b", "a,b", "a\nb", "\x1b[2J", "\u{202e}", &long] {
            assert!(eid(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn impossible_indices_pids_uids_and_ids_are_refused() {
        assert_eq!((index("2"), index(" 3")), (Ok(2), Ok(3)));
        for bad in ["", " ", "-1", "1 2", "x"] {
            assert!(index(bad).is_err(), "{bad}");
        }
        assert_eq!((pid("1"), pid("2147483647")), (Ok(1), Ok(i32::MAX as u32)));
        for bad in ["", "0", "-1", "2147483648", "99999999999", "x", "1.5"] {
            assert!(pid(bad).is_err(), "{bad}");
        }
        assert_eq!((uid("0"), uid("4294967294")), (Ok(0), Ok(4_294_967_294)));
        for bad in ["", "-1", "4294967296", "root"] {
            assert!(uid(bad).is_err(), "{bad}");
        }
        let id = "3b1f7c22-90d4-4e0c-9d5b-6f1c0a7be001";
        assert_eq!(kernel_id(id).as_deref(), Ok(id));
        for bad in ["", "../x", "a b", "a\n"] {
            assert!(kernel_id(bad).is_err(), "{bad}");
        }
        assert_eq!(username("alice").as_deref(), Ok("alice"));
        assert!(username("a\nb").is_err() && username("\x1b[2J").is_err());
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
