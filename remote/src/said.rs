//! What a host said, as far as it can be printed.

use genv_core::text::{harmless, shortened};

/// How much is shown of it.
pub(crate) const MOST_SHOWN_CHARACTERS: usize = 160;

/// The last line that says something.
pub(crate) fn last_line(text: &str) -> Option<String> {
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(shown(line.trim().as_bytes()))
}

/// Its beginning.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let most = MOST_SHOWN_CHARACTERS * 4;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(most)]);
    format!("'{}'", shortened(&harmless(text.trim()), MOST_SHOWN_CHARACTERS))
}
