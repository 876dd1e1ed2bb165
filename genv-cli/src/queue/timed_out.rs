//! The message of a process whose devices were not free in time.

/// The message after the time limit: the refusal without the advice to wait.
pub(super) fn timed_out_message(refusal: &str) -> String {
    let (what, advice) = match refusal.rfind(". '") {
        Some(end) => (&refusal[..end], &refusal[end + 2..]),
        None => (refusal, ""),
    };
    let advice = advice.split(", ");
    let rest: Vec<&str> = advice.filter(|it| !it.starts_with("'--wait'")).collect();
    let text = format!("{what}. This did not change in time. {}", rest.join(", "));
    text.trim_end_matches(". ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_waited_is_not_advised_to_wait() {
        for (refusal, expected) in [
            (
                "0 of 1 are free. 'genv devices' shows who, '--wait' waits",
                "0 of 1 are free. This did not change in time. 'genv devices' shows who",
            ),
            ("eva waits. '--wait' waits too, '-o' shares", "eva waits. This did not change in time. '-o' shares"),
            ("no. '--wait' waits", "no. This did not change in time"),
            ("no", "no. This did not change in time"),
        ] {
            assert_eq!(timed_out_message(refusal), expected);
        }
    }
}
