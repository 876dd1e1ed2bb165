//! Names of hosts: the name of this machine, and patterns for many names such as `gpu[01-08]`, as in Slurm, pdsh and
//! clush.

/// This machine's name: `uname -n`.
pub fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The most hosts of one pattern: a larger number is a typing error.
pub const MOST_HOSTS: usize = 10_000;

/// A text that names no hosts, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPatternError {
    /// The text is empty.
    #[error("the name of a host is empty: write one, such as gpu01")]
    Empty,
    /// A bracket without its counterpart, or within other brackets.
    #[error("the brackets of '{}' do not match: write gpu[01-08] for gpu01 to gpu08", .0.escape_debug())]
    Brackets(String),
    /// The text in brackets is not a list of ranges.
    #[error(
        "'{}' in '{}' is not a range of numbers: write gpu[01-08] or gpu[1,3,5-7], the smaller number \
         first",
        .range.escape_debug(), .pattern.escape_debug()
    )]
    Range {
        /// The whole text.
        pattern: String,
        /// The wrong part.
        range: String,
    },
    /// A character that is in no name of a host.
    #[error(
        "'{}' has {character:?}, which is in no name of a host: name hosts, or ranges such as gpu[01-08]",
        .pattern.escape_debug()
    )]
    Character {
        /// The whole text.
        pattern: String,
        /// The character.
        character: char,
    },
    /// The pattern stands for more than [`MOST_HOSTS`].
    #[error("'{}' stands for more than {MOST_HOSTS} hosts: make the range smaller", .0.escape_debug())]
    TooMany(String),
}

/// The hosts of a pattern, in the order of the pattern. Numbers have the width of the first number of their range.
///
/// # Errors
/// The text is not a name or a pattern, or stands for more than [`MOST_HOSTS`].
pub fn expand(pattern: &str) -> Result<Vec<String>, HostPatternError> {
    if pattern.is_empty() {
        return Err(HostPatternError::Empty);
    }
    let brackets = || HostPatternError::Brackets(pattern.to_owned());
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while !rest.is_empty() {
        let (fixed, range) = match rest.split_once('[') {
            None => (std::mem::take(&mut rest), None),
            Some((fixed, after)) => {
                let (range, after) = after.split_once(']').ok_or_else(brackets)?;
                rest = after;
                (fixed, Some(range))
            }
        };
        if fixed.contains(']') || range.is_some_and(|range| range.contains('[')) {
            return Err(brackets());
        }
        if let Some(character) = fixed.chars().find(|c| !may_be_in_a_name(*c)) {
            return Err(HostPatternError::Character { pattern: pattern.to_owned(), character });
        }
        let numbers = match range {
            Some(range) => numbers(pattern, range)?,
            None => vec![String::new()],
        };
        if names.len().saturating_mul(numbers.len()) > MOST_HOSTS {
            return Err(HostPatternError::TooMany(pattern.to_owned()));
        }
        names = names.iter().flat_map(|name| numbers.iter().map(move |n| format!("{name}{fixed}{n}"))).collect();
    }
    Ok(names)
}

/// Whether a character can be in a host name, an address of version 4 or 6, or an alias in `ssh_config`.
fn may_be_in_a_name(character: char) -> bool {
    character.is_alphanumeric() || "-._:%".contains(character)
}

/// The numbers of `01-08,10`, as wide as they are written.
fn numbers(pattern: &str, ranges: &str) -> Result<Vec<String>, HostPatternError> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let wrong = || HostPatternError::Range { pattern: pattern.to_owned(), range: range.to_owned() };
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(wrong());
        };
        if last < first {
            return Err(wrong());
        }
        if last - first >= MOST_HOSTS as u64 || all.len() >= MOST_HOSTS {
            return Err(HostPatternError::TooMany(pattern.to_owned()));
        }
        all.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hosts(pattern: &str) -> String {
        expand(pattern).unwrap_or_else(|error| panic!("{error}")).join(" ")
    }

    #[test]
    fn a_name_is_itself() {
        for name in ["gpu02", "gpu-a.example.org", "10.0.0.7", "fe80::1%eth0"] {
            assert_eq!(hosts(name), name);
        }
    }

    #[test]
    fn ranges_keep_their_width_and_order() {
        assert_eq!(hosts("gpu[08-11]"), "gpu08 gpu09 gpu10 gpu11");
        assert_eq!(hosts("gpu[8-11]"), "gpu8 gpu9 gpu10 gpu11");
        assert_eq!(hosts("gpu[3,1,5-6].lab"), "gpu3.lab gpu1.lab gpu5.lab gpu6.lab");
        assert_eq!(hosts("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1 r2n2");
        assert_eq!(hosts("[7-8]"), "7 8");
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_a_remedy() {
        let all: Vec<String> = [
            "",
            "gpu[1-2",
            "gpu1]",
            "gpu[[1-2]]",
            "gpu[]",
            "gpu[2-1]",
            "gpu[a-b]",
            "gpu[1-2-3]",
            "gpu[-3]",
            "gpu*",
            "a b",
            "a,b",
            "gpu\u{1b}",
            "gpu[\u{1b}]",
            "gpu[1-10001]",
            "gpu[1-200][1-200]",
            "gpu[99999999999999999999]",
        ]
        .into_iter()
        .map(|pattern| expand(pattern).unwrap_err().to_string())
        .collect();
        insta::assert_snapshot!(all.join("\n"));
    }

    #[test]
    fn the_most_hosts_are_accepted() {
        assert_eq!(expand("gpu[1-10000]").unwrap().len(), MOST_HOSTS);
        assert_eq!(expand("r[1-100]n[1-100]").unwrap().len(), MOST_HOSTS);
    }

    proptest! {
        #[test]
        fn no_text_ends_the_program(text in "\\PC{0,40}|[g0-9\\[\\],-]{0,40}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(!names.is_empty() && names.len() <= MOST_HOSTS);
                prop_assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['[', ']', ' '])));
            }
        }
    }
}
