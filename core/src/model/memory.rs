//! Memory amounts as genv writes them: `4g`, `4096mi`.

use std::fmt;

/// The least amount of a request, 1 MiB: a user who types `4` means gigabytes, not bytes.
pub const LEAST_REQUESTED_BYTES: u64 = 1 << 20;

/// A whole number with a unit. The display is the canonical form, in lower case with the unit: `4g`. An amount from a
/// file without a unit is displayed without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryAmount {
    count: u64,
    unit: Unit,
}

/// Units of genv's amounts: powers of 1000, and with an `i` powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    None,
    B,
    K,
    M,
    G,
    Ki,
    Mi,
    Gi,
}

impl Unit {
    const fn bytes(self) -> u64 {
        match self {
            Self::None | Self::B => 1,
            Self::K => 1000,
            Self::M => 1_000_000,
            Self::G => 1_000_000_000,
            Self::Ki => 1 << 10,
            Self::Mi => 1 << 20,
            Self::Gi => 1 << 30,
        }
    }

    const fn canonical(self) -> &'static str {
        match self {
            Self::None => "",
            Self::B => "b",
            Self::K => "k",
            Self::M => "m",
            Self::G => "g",
            Self::Ki => "ki",
            Self::Mi => "mi",
            Self::Gi => "gi",
        }
    }

    /// Parses a unit in any case, with or without the `B` of "GB" and "GiB".
    fn parse(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "" => Self::None,
            "b" => Self::B,
            "k" | "kb" => Self::K,
            "m" | "mb" => Self::M,
            "g" | "gb" => Self::G,
            "ki" | "kib" => Self::Ki,
            "mi" | "mib" => Self::Mi,
            "gi" | "gib" => Self::Gi,
            _ => return None,
        })
    }
}

/// A text that is not a memory amount, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryAmountError {
    /// The text is empty or has only spaces.
    #[error("the memory amount is empty: write a whole number and a unit, such as 4g or 4096mi")]
    Empty,
    /// The text has a minus sign.
    #[error("memory amount '{0}' is negative: write a whole number and a unit, such as 4g")]
    Negative(String),
    /// The text has a decimal point.
    #[error("memory amount '{0}' is not a whole number: use a smaller unit, such as 1500m for 1.5g")]
    Fraction(String),
    /// The text does not begin with a number.
    #[error("memory amount '{0}' is not a number: write a whole number and a unit, such as 4g")]
    NotANumber(String),
    /// The unit is not known.
    #[error(
        "memory amount '{text}' has the unknown unit '{unit}': use b, k, m or g (powers of 1000), \
         or ki, mi or gi (powers of 1024)"
    )]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// The text after the number.
        unit: String,
    },
    /// The amount does not fit 64 bits.
    #[error("memory amount '{0}' is too large: it must be less than 16 exbibytes")]
    TooLarge(String),
    /// A request for less than [`LEAST_REQUESTED_BYTES`].
    #[error(
        "memory amount '{text}' means {bytes} bytes, less than the least amount of 1mi: \
         write a larger unit, such as {count}g for gigabytes"
    )]
    TooSmall {
        /// The whole text.
        text: String,
        /// The amount in bytes.
        bytes: u64,
        /// The number without the unit.
        count: u64,
    },
}

impl MemoryAmount {
    /// Reads an amount from a state file of any version of genv.
    ///
    /// The unit may be in any case and have a trailing `B`: some versions wrote the text of the user unchanged. An
    /// amount without a unit is in bytes.
    ///
    /// # Errors
    /// The text is not such an amount, or does not fit 64 bits.
    pub fn from_file(text: &str) -> Result<Self, MemoryAmountError> {
        let text = text.trim();
        let own = || text.to_owned();
        if text.is_empty() {
            return Err(MemoryAmountError::Empty);
        }
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() || unit.starts_with(['.', ',']) {
            return Err(match text.as_bytes()[0] {
                b'-' => MemoryAmountError::Negative(own()),
                b'.' | b',' | b'0'..=b'9' => MemoryAmountError::Fraction(own()),
                _ => MemoryAmountError::NotANumber(own()),
            });
        }
        let unit = unit.trim_start();
        let unit =
            Unit::parse(unit).ok_or_else(|| MemoryAmountError::UnknownUnit { text: own(), unit: unit.to_owned() })?;
        // The number consists of digits, so that it can only be too large.
        let count: u64 = number.parse().map_err(|_| MemoryAmountError::TooLarge(own()))?;
        if count.checked_mul(unit.bytes()).is_none() {
            return Err(MemoryAmountError::TooLarge(own()));
        }
        Ok(Self { count, unit })
    }

    /// Reads an amount that a user requests: `4g`, also `4G`, `4GB` or `4GiB`.
    ///
    /// # Errors
    /// As [`MemoryAmount::from_file`], and amounts below [`LEAST_REQUESTED_BYTES`].
    pub fn from_person(text: &str) -> Result<Self, MemoryAmountError> {
        let amount = Self::from_file(text)?;
        if amount.bytes() < LEAST_REQUESTED_BYTES {
            return Err(MemoryAmountError::TooSmall {
                text: text.trim().to_owned(),
                bytes: amount.bytes(),
                count: amount.count.max(1),
            });
        }
        let unit = match amount.unit {
            Unit::None => Unit::B,
            unit => unit,
        };
        Ok(Self { unit, ..amount })
    }

    /// An amount with the unit byte.
    pub const fn from_bytes(count: u64) -> Self {
        Self { count, unit: Unit::B }
    }

    /// An amount of bytes in the largest unit that it is a whole number of: `80gi`, `80g`.
    pub fn in_largest_unit(bytes: u64) -> Self {
        let units = [Unit::Gi, Unit::G, Unit::Mi, Unit::M, Unit::Ki, Unit::K];
        let whole = |unit: &Unit| bytes > 0 && bytes.is_multiple_of(unit.bytes());
        let unit = units.into_iter().find(whole).unwrap_or(Unit::B);
        Self { count: bytes / unit.bytes(), unit }
    }

    /// An amount of whole mebibytes, the unit of device memory in `nvidia-smi` and genv 1.x. A larger amount than fits
    /// 64 bits becomes the largest one.
    pub const fn mebibytes(count: u64) -> Self {
        const MOST: u64 = u64::MAX >> 20;
        Self { count: if count < MOST { count } else { MOST }, unit: Unit::Mi }
    }

    /// The amount in bytes.
    pub const fn bytes(self) -> u64 {
        // All constructors prevent an overflow.
        self.count * self.unit.bytes()
    }
}

impl fmt::Display for MemoryAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, self.unit.canonical())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_amount_is_written_in_its_largest_whole_unit() {
        for (bytes, text) in
            [(0, "0b"), (1, "1b"), (1536, "1536b"), (80 << 30, "80gi"), (80_000_000_000, "80g"), (1536 << 20, "1536mi")]
        {
            let amount = MemoryAmount::in_largest_unit(bytes);
            assert_eq!(amount.to_string(), text);
            assert_eq!(amount.bytes(), bytes);
        }
    }

    #[test]
    fn every_unit_means_its_number_of_bytes() {
        for (text, bytes) in [
            ("7", 7),
            ("7b", 7),
            ("7k", 7_000),
            ("7m", 7_000_000),
            ("7g", 7_000_000_000),
            ("7ki", 7 * 1024),
            ("7mi", 7 * 1024 * 1024),
            ("7gi", 7 * 1024 * 1024 * 1024),
            ("0", 0),
            (" 15258mi\n", 15258 << 20),
        ] {
            assert_eq!(MemoryAmount::from_file(text).map(MemoryAmount::bytes), Ok(bytes));
        }
    }

    #[test]
    fn a_requested_amount_is_displayed_in_the_canonical_form() {
        for (typed, canonical) in [
            ("4g", "4g"),
            ("4G", "4g"),
            ("4GB", "4g"),
            ("4GiB", "4gi"),
            ("4Gi", "4gi"),
            ("4 GB", "4g"),
            ("0004096Mi", "4096mi"),
            ("1048576", "1048576b"),
        ] {
            let amount = MemoryAmount::from_person(typed).unwrap();
            assert_eq!(amount.to_string(), canonical, "{typed}");
        }
    }

    #[test]
    fn an_invalid_amount_is_refused_with_a_remedy() {
        let refused = |text: &str| MemoryAmount::from_person(text).unwrap_err().to_string();
        let all: Vec<String> = [
            "",
            "-4g",
            "1.5g",
            ".5g",
            "abc",
            "4t",
            "4 g b",
            "99999999999999999999",
            "18446744073709551615k",
            "4",
            "1m",
            "0g",
        ]
        .into_iter()
        .map(refused)
        .collect();
        insta::assert_snapshot!(all.join("\n"), @r"
        the memory amount is empty: write a whole number and a unit, such as 4g or 4096mi
        memory amount '-4g' is negative: write a whole number and a unit, such as 4g
        memory amount '1.5g' is not a whole number: use a smaller unit, such as 1500m for 1.5g
        memory amount '.5g' is not a whole number: use a smaller unit, such as 1500m for 1.5g
        memory amount 'abc' is not a number: write a whole number and a unit, such as 4g
        memory amount '4t' has the unknown unit 't': use b, k, m or g (powers of 1000), or ki, mi or gi (powers of 1024)
        memory amount '4 g b' has the unknown unit 'g b': use b, k, m or g (powers of 1000), or ki, mi or gi (powers of 1024)
        memory amount '99999999999999999999' is too large: it must be less than 16 exbibytes
        memory amount '18446744073709551615k' is too large: it must be less than 16 exbibytes
        memory amount '4' means 4 bytes, less than the least amount of 1mi: write a larger unit, such as 4g for gigabytes
        memory amount '1m' means 1000000 bytes, less than the least amount of 1mi: write a larger unit, such as 1g for gigabytes
        memory amount '0g' means 0 bytes, less than the least amount of 1mi: write a larger unit, such as 1g for gigabytes
        ");
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back_as_the_same_amount(count in any::<u32>(), unit in "(b|k|m|g|ki|mi|gi)?") {
            let amount = MemoryAmount::from_file(&format!("{count}{unit}")).unwrap();
            prop_assert_eq!(MemoryAmount::from_file(&amount.to_string()), Ok(amount));
            prop_assert_eq!(MemoryAmount::from_file(&amount.to_string().to_uppercase()), Ok(amount));
        }

        #[test]
        fn no_text_ends_the_program(text in any::<String>()) {
            if let Ok(amount) = MemoryAmount::from_file(&text) {
                prop_assert!(text.trim().starts_with(|c: char| c.is_ascii_digit()));
                prop_assert_eq!(MemoryAmount::from_file(&amount.to_string()), Ok(amount));
            }
        }
    }
}
