//! Splits the output of a script that runs several programs.

use std::collections::BTreeMap;

/// The prefix of the line at the end of a section. The section's name and its program's exit code follow.
const PREFIX: &str = "#genv-remote ";

/// The output and the exit code of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section<'a> {
    pub(super) text: &'a [u8],
    pub(super) code: u32,
}

/// The sections of an output, by name. Output of the user's profile precedes the section `begin`.
pub(super) fn sections(output: &[u8]) -> BTreeMap<&str, Section<'_>> {
    let mut sections = BTreeMap::new();
    let mut start = 0;
    let mut at = 0;
    for line in output.split_inclusive(|byte| *byte == b'\n') {
        let text = std::str::from_utf8(line).unwrap_or_default();
        if let Some((name, code)) = text.strip_prefix(PREFIX).and_then(|rest| rest.trim_end().split_once(' '))
            && let Ok(code) = code.parse()
        {
            let text = &output[start..at];
            sections.entry(name).or_insert(Section { text, code });
            start = at + line.len();
        }
        at += line.len();
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_section_is_the_output_before_its_line() {
        let output =
            b"motd\n#genv-remote begin 0\na\nb\n\n#genv-remote one 3\n#genv-remote two 0\n\xff\n#genv-remote x\nrest";
        let sections = sections(output);
        assert_eq!(sections["one"].text, b"a\nb\n\n");
        assert_eq!(sections["one"].code, 3);
        assert_eq!(sections["two"].text, b"");
        assert_eq!(sections.len(), 3);
    }

    #[test]
    fn the_first_of_two_sections_with_one_name_counts() {
        let sections = sections(b"a\n#genv-remote p 0\nb\n#genv-remote p 1\n");
        assert_eq!(sections["p"], Section { text: b"a\n", code: 0 });
    }
}
