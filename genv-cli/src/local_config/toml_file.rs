//! The files `genv.toml` and `pyproject.toml`.
//!
//! Only this module uses the TOML library.

use std::ops::Range;
use std::path::Path;

use genv_core::text::{harmless, shortened};
use rustix::fs::CWD;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::config_path::peek;
use super::{ConfigPath, Form, LocalConfig, LocalConfigError, MOST_BYTES, shown};
use crate::{lease, values};

/// The largest size of a file.
const MOST_FILE_BYTES: u64 = 1 << 20;

/// The largest length of a quotation from the TOML library's message.
const MOST_MESSAGE_CHARACTERS: usize = 200;

const KEYS: &str = "name, gpus, gpu-memory, gpu-type, gpu-memory-at-least and for";

/// Whether a `pyproject.toml` has the table `[tool.genv]`. In an invalid file, a line with the header counts: so genv
/// reports no errors of projects that do not use genv.
pub(super) fn has_table(path: &Path) -> bool {
    let Some(content) = peek(path, MOST_FILE_BYTES) else {
        return false;
    };
    let text = String::from_utf8_lossy(&content);
    // A fast path: the files of most projects do not mention genv.
    if !text.contains("genv") {
        return false;
    }
    match DeTable::parse(&text) {
        Ok(document) => table_of_project(document.get_ref()).is_some(),
        Err(_) => text.lines().any(is_header),
    }
}

fn is_header(line: &str) -> bool {
    let line: String = line.split_whitespace().collect();
    line.starts_with("[tool.genv]")
}

fn table_of_project<'a, 'i>(document: &'a DeTable<'i>) -> Option<&'a Spanned<DeValue<'i>>> {
    document.get("tool")?.get_ref().get("genv")
}

/// Reads the configuration of a file. A missing file counts as an empty one.
pub(super) fn load(path: &Path, form: Form) -> Result<LocalConfig, LocalConfigError> {
    let place = ConfigPath::new("use", path, form.correct());
    let Some(text) = place.read(CWD, path, MOST_FILE_BYTES)? else {
        return Ok(LocalConfig::default());
    };
    parse(&text, form).map_err(|text_error| {
        let before = text.as_bytes().iter().take(text_error.offset);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        place.wrong(format!("line {line}: {}", harmless(&text_error.message)))
    })
}

struct TextError {
    /// The position in bytes.
    offset: usize,
    message: String,
}

fn text_error(span: Range<usize>, message: String) -> TextError {
    TextError { offset: span.start, message }
}

fn parse(text: &str, form: Form) -> Result<LocalConfig, TextError> {
    let document = DeTable::parse(text).map_err(|error| {
        let message = shortened(error.message(), MOST_MESSAGE_CHARACTERS);
        let why = format!("it is not TOML: {message}");
        text_error(error.span().unwrap_or_default(), why)
    })?;
    match form {
        Form::Folder | Form::GenvToml => config(document.get_ref()),
        Form::Pyproject => match table_of_project(document.get_ref()) {
            None => Ok(LocalConfig::default()),
            Some(value) => {
                let table = value.get_ref().as_table().ok_or_else(|| {
                    let what = value.get_ref().type_str();
                    let why = format!("tool.genv is of the type {what}: write a table [tool.genv]");
                    text_error(value.span(), why)
                })?;
                config(table)
            }
        },
    }
}

fn config(table: &DeTable<'_>) -> Result<LocalConfig, TextError> {
    let mut config = LocalConfig::default();
    for (key, value) in table {
        let entry = KeyValue { key: key.get_ref(), value };
        match entry.key {
            "name" => config.configuration.name = Some(entry.text("train", name)?),
            "gpus" => config.configuration.gpus = Some(entry.number()?),
            "gpu-memory" => {
                config.configuration.gpu_memory = Some(entry.text("4g", values::gpu_memory)?);
            }
            "gpu-type" => config.kind.types = entry.types()?,
            "gpu-memory-at-least" => {
                config.kind.memory_at_least = Some(entry.text("40g", values::gpu_memory)?);
            }
            "for" => config.lease = Some(entry.text("8h", lease::parse_lease)?),
            unknown => {
                let why = format!("the key '{}' is unknown: the keys are {KEYS}", shown(unknown));
                return Err(text_error(key.span(), why));
            }
        }
    }
    Ok(config)
}

/// Parses the name of an environment. The error of the flag `--name` has a hint that does not fit here.
fn name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a name has at least one character".to_owned()),
        _ => values::name(text),
    }
}

/// A key with its value.
struct KeyValue<'a, 'i> {
    key: &'a str,
    value: &'a Spanned<DeValue<'i>>,
}

impl KeyValue<'_, '_> {
    fn text_error(&self, why: &str) -> TextError {
        text_error(self.value.span(), format!("{}: {why}", self.key))
    }

    /// The error of a value with a wrong type.
    fn of_another_type(&self, value: &DeValue<'_>, expected: &str) -> TextError {
        let what = value.type_str();
        self.text_error(&format!("the value is of the type {what}: write {expected}"))
    }

    fn text<T, E: ToString>(&self, example: &str, parse: fn(&str) -> Result<T, E>) -> Result<T, TextError> {
        let value = self.value.get_ref();
        let text = value
            .as_str()
            .ok_or_else(|| self.of_another_type(value, &format!("a string, such as {} = \"{example}\"", self.key)))?;
        self.parsed(text, parse)
    }

    fn parsed<T, E: ToString>(&self, text: &str, parse: fn(&str) -> Result<T, E>) -> Result<T, TextError> {
        if text.len() as u64 > MOST_BYTES {
            return Err(self.text_error(&format!("the value has more than {MOST_BYTES} bytes")));
        }
        parse(text).map_err(|error| self.text_error(&error.to_string()))
    }

    fn number(&self) -> Result<u32, TextError> {
        let value = self.value.get_ref();
        let expected = "an integer from 0 on, such as gpus = 2";
        let integer = value.as_integer().ok_or_else(|| self.of_another_type(value, expected))?;
        let number = u32::from_str_radix(integer.as_str(), integer.radix());
        number.map_err(|_| {
            let number = shown(&integer.to_string());
            self.text_error(&format!("{number} is not a number of devices: write {expected}"))
        })
    }

    /// One or several types; also several in one text with commas, as for the flag.
    fn types(&self) -> Result<Vec<String>, TextError> {
        let value = self.value.get_ref();
        let expected = "a string or an array of strings, such as gpu-type = \"a100\"";
        let wrong = |value| self.of_another_type(value, expected);
        let texts = match value {
            DeValue::String(text) => vec![text.as_ref()],
            DeValue::Array(array) => {
                let items = array.iter().map(Spanned::get_ref);
                let texts = items.map(|item| item.as_str().ok_or_else(|| wrong(item)));
                texts.collect::<Result<_, _>>()?
            }
            other => return Err(wrong(other)),
        };
        let types = texts.into_iter().flat_map(|text| text.split(','));
        types.map(|text| self.parsed(text, values::gpu_type)).collect()
    }
}

#[cfg(test)]
mod tests;
