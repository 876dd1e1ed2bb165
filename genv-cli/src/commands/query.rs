//! `genv envs query` and `genv devices query`: fields of each, in the order in which they are asked for.

use std::io;

use clap::ValueEnum;
use genv_core::state::shape::Times;
use serde_json::{Map, Value};

use crate::output::{csv_line, print, print_json};

/// A field that can be asked for.
pub(super) trait Field: ValueEnum + Copy {
    /// What has it.
    type Of;

    /// As genv 1.4.3 prints it.
    fn text(self, of: &Self::Of, times: &Times) -> String;

    /// As JSON.
    fn json(self, of: &Self::Of, times: &Times) -> Value;
}

/// Prints a line, or an object of a list, for each.
pub(super) fn answer<'a, F>(all: impl Iterator<Item = &'a F::Of>, fields: &[F], as_json: bool) -> io::Result<()>
where
    F: Field,
    F::Of: 'a,
{
    let times = Times::here();
    if as_json {
        let objects = all.map(|it| {
            let fields = fields.iter().map(|field| {
                let name = field.to_possible_value().map(|it| it.get_name().to_owned());
                (name.unwrap_or_default(), field.json(it, &times))
            });
            fields.collect::<Map<String, Value>>()
        });
        return print_json(&objects.collect::<Vec<_>>());
    }
    let lines = all.map(|it| csv_line(fields.iter().map(|field| field.text(it, &times))));
    print(lines.collect::<String>().as_bytes())
}
