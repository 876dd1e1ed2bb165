//! Refusals of devices that may come free later.

use genv_core::outside::OutsideUse;
use genv_core::state::ChangeError;
use genv_core::state::allocate::AllocateError;

/// Whether an attempt failed since devices are not free.
pub(super) fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ChangeError::Allocate(_))) || error.is::<AllocateError>()
}

/// The processes that caused the refusal by using devices without holding them.
pub(super) fn in_the_way(refusal: &anyhow::Error) -> &[OutsideUse] {
    let refusal = match refusal.downcast_ref() {
        Some(ChangeError::Allocate(refusal)) => Some(refusal),
        _ => refusal.downcast_ref::<AllocateError>(),
    };
    refusal.map_or(&[], AllocateError::outside)
}

/// The refusal after a wait that was too short, without the advice to wait.
pub(super) fn not_in_time(refusal: &str) -> String {
    let (what, advice) = match refusal.rfind(". '") {
        Some(end) => (&refusal[..end], &refusal[end + 2..]),
        None => (refusal, ""),
    };
    let advice = advice.split(", ");
    let rest: Vec<&str> = advice.filter(|it| !it.starts_with("'--wait'")).collect();
    let text = format!("{what}. That did not change in time. {}", rest.join(", "));
    text.trim_end_matches(". ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_waited_is_not_advised_to_wait() {
        for (refusal, expected) in [
            (
                "0 of 1 can be had. 'genv devices' tells who, '--wait' waits",
                "0 of 1 can be had. That did not change in time. 'genv devices' tells who",
            ),
            ("eva waits. '--wait' waits too, '-o' shares", "eva waits. That did not change in time. '-o' shares"),
            ("no. '--wait' waits", "no. That did not change in time"),
            ("no", "no. That did not change in time"),
        ] {
            assert_eq!(not_in_time(refusal), expected);
        }
    }
}
