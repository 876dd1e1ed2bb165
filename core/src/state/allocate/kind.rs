//! Which devices a request accepts, by their model and their total memory.

use std::fmt;

use crate::model::MemoryAmount;
use crate::text::harmless;

/// The accepted devices. The default accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceKind {
    /// Words of models' names, such as `a100` or `rtx 4090`. A model needs one of the entries; without entries every
    /// model is accepted.
    pub types: Vec<String>,
    /// The least total memory of a device.
    pub memory_at_least: Option<MemoryAmount>,
}

impl DeviceKind {
    /// Whether all devices are accepted.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a device is accepted. A device with an unknown model or memory is not accepted if the request depends on
    /// it.
    pub fn accepts(&self, model: Option<&str>, total_memory: Option<MemoryAmount>) -> bool {
        let is_of_type =
            self.types.is_empty() || model.is_some_and(|model| self.types.iter().any(|it| has_words(model, it)));
        let is_large = self.memory_at_least.is_none_or(|least| {
            // The driver keeps a part of the memory, and reports less than the nominal size.
            let least = least.bytes() - least.bytes() / 100;
            total_memory.is_some_and(|total| least <= total.bytes())
        });
        is_of_type && is_large
    }
}

/// ` of type 'a100' or 'h100' of 40g or more`; nothing if all devices are accepted.
impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.types.is_empty() {
            let types = self.types.iter().map(|it| format!("'{}'", harmless(it)));
            write!(f, " of type {}", types.collect::<Vec<_>>().join(" or "))?;
        }
        match self.memory_at_least {
            Some(least) => write!(f, " of {least} or more"),
            None => Ok(()),
        }
    }
}

/// Whether the words of a type follow each other in the name of a model: `a100` is in `NVIDIA A100-SXM4-40GB`, `a10`
/// is not.
fn has_words(model: &str, type_: &str) -> bool {
    let (model, type_) = (words(model), words(type_));
    !type_.is_empty() && model.windows(type_.len()).any(|it| it == type_)
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|it: char| !it.is_alphanumeric());
    let words = words.filter(|it| !it.is_empty());
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: &str = "NVIDIA A100-SXM4-40GB";

    fn kind(types: &[&str], memory_at_least: &str) -> DeviceKind {
        DeviceKind {
            types: types.iter().map(|it| (*it).to_owned()).collect(),
            memory_at_least: MemoryAmount::from_file(memory_at_least).ok(),
        }
    }

    #[test]
    fn a_type_is_one_or_several_words_of_the_model_in_any_case() {
        for (model, types, accepted) in [
            (A100, &["a100"][..], true),
            (A100, &["A100-SXM4"], true),
            (A100, &["nvidia a100 sxm4 40gb"], true),
            (A100, &["t4", "a100"], true),
            ("NVIDIA GeForce RTX 4090", &["rtx 4090"], true),
            (A100, &["a10"], false),
            (A100, &["a100 40gb"], false),
            (A100, &["-"], false),
            ("NVIDIA L40S", &["l40"], false),
            ("Tesla T4", &["v100", "a100"], false),
        ] {
            let is_accepted = kind(types, "").accepts(Some(model), None);
            assert_eq!(is_accepted, accepted, "{model}: {types:?}");
        }
        assert!(!kind(&["a100"], "").accepts(None, None));
        assert!(DeviceKind::default().accepts(None, None));
    }

    #[test]
    fn the_nominal_memory_of_a_device_counts() {
        let mebibytes = |count| Some(MemoryAmount::mebibytes(count));
        for (total, least, accepted) in [
            // A100 40GB, H100 80GB, T4 16GB.
            (mebibytes(40_960), "40g", true),
            (mebibytes(40_960), "40gi", true),
            (mebibytes(81_559), "80gi", true),
            (mebibytes(15_360), "16g", true),
            (mebibytes(40_960), "44g", false),
            (mebibytes(40_960), "48g", false),
            (mebibytes(15_360), "16gi", false),
            (None, "1g", false),
        ] {
            let is_accepted = kind(&[], least).accepts(None, total);
            assert_eq!(is_accepted, accepted, "{total:?}: {least}");
        }
    }

    #[test]
    fn the_display_fits_into_a_sentence() {
        let shown = kind(&["a100", "rtx\u{1b} 4090"], "40g").to_string();
        assert_eq!(shown, r" of type 'a100' or 'rtx\u{1b} 4090' of 40g or more");
        assert_eq!(DeviceKind::default().to_string(), "");
    }
}
