//! Missing capabilities of this process: capabilities(7).

use std::fs;

/// Number and name of each capability, and the consequence of its absence.
const NEEDED: [(u32, &str, &str); 3] = [
    (
        2,
        "CAP_DAC_READ_SEARCH",
        "the environ of other users' processes cannot be read, so that these count as unknown and are spared",
    ),
    (5, "CAP_KILL", "processes of other users cannot be signalled"),
    (
        19,
        "CAP_SYS_PTRACE",
        "the environ and the program of other users' processes cannot be read, so that these count as unknown and are spared",
    ),
];

/// A sentence for each missing capability.
pub(crate) fn missing() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing_from(&status)
}

fn missing_from(status: &str) -> Vec<String> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    // If the kernel does not show the capabilities, none counts as missing.
    let effective = effective.unwrap_or(u64::MAX);
    let needed = NEEDED.iter().filter(|(bit, ..)| effective & (1 << bit) == 0);
    let sentences = needed.map(|(_, name, without)| {
        format!("without {name} {without}: run as root, or give it with AmbientCapabilities")
    });
    sentences.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let missing = |bits: &str| missing_from(&format!("Name:\tx\nCapEff:\t{bits}\n")).len();
        assert_eq!(missing("000001ffffffffff"), 0);
        assert_eq!(missing("0000000000080024"), 0);
        assert_eq!(missing("0000000000000000"), 3);
        let without_kill = missing_from("CapEff:\t0000000000080004\n");
        assert_eq!(without_kill.len(), 1);
        assert!(without_kill[0].contains("CAP_KILL"), "{without_kill:?}");
        assert_eq!(missing_from(""), [""; 0]);
    }
}
