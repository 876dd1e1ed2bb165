//! Label values, escaped and limited for the text format.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use genv_core::model::DeviceIndex;

/// Maximum of characters of a label value. Users choose the names of environments and commands, and a long name costs
/// every scrape and every query.
const LENGTH: usize = 128;

/// A value of a label.
pub trait LabelValue {
    /// Appends the value to `text`: printable, escaped, and of at most 128 characters.
    fn push_to(&self, text: &mut String);
}

impl LabelValue for str {
    fn push_to(&self, text: &mut String) {
        if self.len() > LENGTH && self.chars().nth(LENGTH).is_some() {
            let cut: String = self.chars().take(LENGTH - 1).chain(['…']).collect();
            push_printable(text, &cut);
        } else {
            push_printable(text, self);
        }
    }
}

impl LabelValue for String {
    fn push_to(&self, text: &mut String) {
        self.as_str().push_to(text);
    }
}

impl<T: LabelValue + ?Sized> LabelValue for &T {
    fn push_to(&self, text: &mut String) {
        (**self).push_to(text);
    }
}

impl LabelValue for u32 {
    fn push_to(&self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(*self));
    }
}

impl LabelValue for u64 {
    fn push_to(&self, text: &mut String) {
        text.push_str(itoa::Buffer::new().format(*self));
    }
}

impl LabelValue for DeviceIndex {
    fn push_to(&self, text: &mut String) {
        { self.gpu }.push_to(text);
        if let Some(mig) = self.mig {
            text.push(':');
            u32::from(mig).push_to(text);
        }
    }
}

/// Appends `value` with control characters replaced, and with the special characters of the text format escaped.
pub(super) fn push_printable(text: &mut String, value: &str) {
    if is_plain(value.as_bytes()) {
        text.push_str(value);
        return;
    }
    for character in value.chars() {
        match character {
            '\\' => text.push_str(r"\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str(r"\n"),
            other if other.is_control() => text.push('\u{fffd}'),
            other => text.push(other),
        }
    }
}

/// Whether a text needs no change, as nearly all do: printable ASCII without characters to escape.
fn is_plain(text: &[u8]) -> bool {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'\\' && byte != b'"';
    // Without an early end, so that the compiler vectorizes the loop.
    text.iter().fold(true, |all, byte| all & is_plain(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_printable_and_of_bounded_length() {
        let (long, longer) = ("x".repeat(128), "é".repeat(129));
        let cut = format!("{}…", "é".repeat(127));
        for (given, expected) in [
            ("plain ~", "plain ~"),
            ("a\tb\x7f", "a\u{fffd}b\u{fffd}"),
            ("a\0b\u{1b}[31m\r\nc", "a\u{fffd}b\u{fffd}[31m\u{fffd}\\nc"),
            ("ü\nz", "ü\\nz"),
            ("\\\"", "\\\\\\\""),
            ("\u{85}é", "\u{fffd}é"),
            (&long, &long),
            (&"é".repeat(128), &"é".repeat(128)),
            (&longer, &cut),
            (&"\"".repeat(129), &("\\\"".repeat(127) + "…")),
            (&"\t".repeat(129), &("\u{fffd}".repeat(127) + "…")),
        ] {
            let mut text = "before ".to_owned();
            given.push_to(&mut text);
            assert_eq!(text, format!("before {expected}"));
        }
    }

    #[test]
    fn indices_are_written_as_they_are_displayed() {
        for index in [DeviceIndex::gpu(0), DeviceIndex { gpu: 12, mig: Some(3) }] {
            let mut text = String::new();
            index.push_to(&mut text);
            assert_eq!(text, index.to_string());
        }
    }
}
