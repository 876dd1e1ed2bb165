//! Values of a scenario file that are more than a number or a text.

use std::fmt;
use std::str::FromStr;

use genv_core::model::{DeviceIndex, MemoryAmount, ParseDeviceIndexError};
use genv_core::yaml_scalar;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::definition::Calls;
use crate::pattern::{Level, Pattern};

yaml_scalar!(
    /// Bytes.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) Amount(u64),
    |text| MemoryAmount::from_file(text).map(MemoryAmount::bytes).map_err(|e| e.to_string())
);
yaml_scalar!(
    /// Seconds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) Span(f64),
    |text| genv_core::duration::parse_duration(text).map(|d| d.as_secs_f64()).map_err(|e| e.to_string())
);
yaml_scalar!(
    /// A device index.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) Index(DeviceIndex),
    |text| text.parse().map_err(|e: ParseDeviceIndexError| e.to_string())
);
yaml_scalar!(
    /// Major and minor.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) CudaVersion((u32, u32)),
    |text| text
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| format!("'{text}' is not a CUDA version: write it as \"12.4\", with quotes"))
);
yaml_scalar!(
    /// Unix time in milliseconds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) Timestamp(i64),
    |text| jiff::Timestamp::from_str(text)
        .map(jiff::Timestamp::as_millisecond)
        .map_err(|_| format!("'{text}' is not a time: write it as 2026-01-01T00:00:00Z"))
);

/// A time: so long before the epoch, or absolute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    SecondsBeforeEpoch(f64),
    Absolute(Timestamp),
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Ok(before) = genv_core::duration::parse_duration(&text) {
            return Ok(Self::SecondsBeforeEpoch(before.as_secs_f64()));
        }
        jiff::Timestamp::from_str(&text).map(|time| Self::Absolute(Timestamp(time.as_millisecond()))).map_err(|_| {
            de::Error::custom(format!(
                "'{text}' is not a time: write 2h for two hours before the epoch, or 2026-01-01T00:00:00Z"
            ))
        })
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallsVisitor;

        impl<'de> Visitor<'de> for CallsVisitor {
            type Value = Calls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("all, the name of an NVML call such as nvmlDeviceGetTemperature, or a list of names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Calls, E> {
                match text {
                    "all" => Ok(Calls::All),
                    call => Ok(Calls::Named(vec![checked_call(call)?])),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Calls, A::Error> {
                let mut calls = Vec::new();
                while let Some(call) = list.next_element::<String>()? {
                    calls.push(checked_call(&call)?);
                }
                Ok(Calls::Named(calls))
            }
        }

        fn checked_call<E: de::Error>(call: &str) -> Result<String, E> {
            if call.starts_with("nvml") {
                Ok(call.to_owned())
            } else {
                Err(E::custom(format!(
                    "'{call}' is not an NVML call: write all, or a name such as nvmlDeviceGetTemperature"
                )))
            }
        }

        deserializer.deserialize_any(CallsVisitor)
    }
}

impl<'de> Deserialize<'de> for Level {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LevelVisitor;

        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Range {
            idle: f64,
            max: f64,
        }

        impl<'de> Visitor<'de> for LevelVisitor {
            type Value = Level;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or {idle: NUMBER, max: NUMBER}")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Level, E> {
                if value.is_finite() && value >= 0.0 {
                    Ok(Level { idle: value, max: value })
                } else {
                    Err(E::custom(format!("{value} is not a number of 0 or more")))
                }
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Level, E> {
                self.visit_f64(value as f64)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Level, E> {
                self.visit_f64(value as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Level, E> {
                let expected: &dyn de::Expected = &self;
                Err(E::custom(format!("'{text}' is not {expected}")))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Level, A::Error> {
                let Range { idle, max } = Range::deserialize(de::value::MapAccessDeserializer::new(map))?;
                if idle >= 0.0 && max >= idle && max.is_finite() {
                    Ok(Level { idle, max })
                } else {
                    Err(de::Error::custom(format!(
                        "idle {idle} and max {max} are not a range: idle must be 0 or more, and max not below idle"
                    )))
                }
            }
        }

        deserializer.deserialize_any(LevelVisitor)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PatternVisitor;

        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Changing {
            wave: Option<Wave>,
            steps: Option<Vec<(Span, f64)>>,
        }

        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wave {
            period: Span,
            low: f64,
            high: f64,
            phase: Option<Span>,
        }

        impl<'de> Visitor<'de> for PatternVisitor {
            type Value = Pattern;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number from 0 to 1, {wave: {period, low, high, phase}}, or {steps: [[DURATION, NUMBER], ...]}",
                )
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Pattern, E> {
                ratio(value).map(Pattern::Constant)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Pattern, E> {
                self.visit_f64(value as f64)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Pattern, E> {
                self.visit_f64(value as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Pattern, E> {
                let expected: &dyn de::Expected = &self;
                Err(E::custom(format!("'{text}' is not {expected}")))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Pattern, A::Error> {
                let changing = Changing::deserialize(de::value::MapAccessDeserializer::new(map))?;
                match (changing.wave, changing.steps) {
                    (Some(wave), None) => {
                        let (low, high) = (ratio(wave.low)?, ratio(wave.high)?);
                        if low > high {
                            return Err(de::Error::custom("low is above high"));
                        }
                        Ok(Pattern::Wave {
                            period: positive(wave.period)?,
                            low,
                            high,
                            phase: wave.phase.map_or(0.0, |phase| phase.0),
                        })
                    }
                    (None, Some(steps)) if !steps.is_empty() => steps
                        .into_iter()
                        .map(|(length, value)| Ok((positive(length)?, ratio(value)?)))
                        .collect::<Result<_, _>>()
                        .map(Pattern::Steps),
                    _ => Err(de::Error::custom("write either wave or steps, and at least one step")),
                }
            }
        }

        fn ratio<E: de::Error>(value: f64) -> Result<f64, E> {
            if (0.0..=1.0).contains(&value) {
                Ok(value)
            } else {
                Err(E::custom(format!("{value} is not a ratio from 0 to 1")))
            }
        }

        fn positive<E: de::Error>(length: Span) -> Result<f64, E> {
            if length.0 > 0.0 { Ok(length.0) } else { Err(E::custom("a length of 0 never passes: write 1ms or more")) }
        }

        deserializer.deserialize_any(PatternVisitor)
    }
}
