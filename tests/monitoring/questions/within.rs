//! How near an answer has to be.

/// How far an answer may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Within {
    /// Not at all: it is not about an amount of time.
    Rounding,
    /// Prometheus sees a counter at scrapes, a minute apart here, and extrapolates to the edges of an hour: whoever comes, goes,
    /// begins or pauses, and an exporter that ends, is told up to a minute too long or too short. Frank comes, loses a GPU
    /// under an exporter that begins anew, has it back, and his host dies: two minutes in all.
    TwoMinutes,
    /// The same of energy: of the shortest use, dave's of twelve hours, a minute is 0.14 %.
    TwoPerMille,
}

impl Within {
    /// Whether a value is near enough to the one that is wanted.
    pub(crate) fn allows(self, value: f64, wanted: f64) -> bool {
        let off = (value - wanted).abs();
        match self {
            Self::Rounding => off <= wanted.abs() * 1e-9,
            Self::TwoMinutes => off <= 2.0 * A_MINUTE,
            Self::TwoPerMille => off <= wanted.abs() * 0.002,
        }
    }
}

/// In hours.
pub(crate) const A_MINUTE: f64 = 1.0 / 60.0;
