//! Refusals of devices that may become free later.

use genv_core::outside::OutsideUse;
use genv_core::state::ChangeError;
use genv_core::state::allocate::AllocateError;

/// Whether an attempt failed because devices are not free.
pub(super) fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ChangeError::Allocate(_))) || error.is::<AllocateError>()
}

/// The processes that caused the refusal by using devices without holding them.
pub(super) fn blocking_uses(refusal: &anyhow::Error) -> &[OutsideUse] {
    let refusal = match refusal.downcast_ref() {
        Some(ChangeError::Allocate(refusal)) => Some(refusal),
        _ => refusal.downcast_ref::<AllocateError>(),
    };
    refusal.map_or(&[], AllocateError::outside)
}

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
