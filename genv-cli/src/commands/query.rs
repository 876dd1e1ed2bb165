//! `genv envs query` and `genv devices query`: selected fields of each item.

use std::io;

use clap::ValueEnum;
use genv_core::state::shape::Times;
use serde_json::{Map, Value};

use crate::output::{csv_line, print, print_json};

/// A field that a user can select.
pub(super) trait QueryField: ValueEnum + Copy {
    /// The type of the items.
    type Item;

    /// The value in the format of genv 1.4.3.
    fn text(self, item: &Self::Item, times: &Times) -> String;

    /// The value as JSON.
    fn json(self, item: &Self::Item, times: &Times) -> Value;
}

/// Prints the fields of each item, as a line or as an object of a list.
pub(super) fn print_fields<'a, F>(
    items: impl Iterator<Item = &'a F::Item>,
    fields: &[F],
    as_json: bool,
) -> io::Result<()>
where
    F: QueryField,
    F::Item: 'a,
{
    let times = Times::here();
    if as_json {
        let objects = items.map(|it| {
            let fields = fields.iter().map(|field| {
                let name = field.to_possible_value().map(|it| it.get_name().to_owned());
                (name.unwrap_or_default(), field.json(it, &times))
            });
            fields.collect::<Map<String, Value>>()
        });
        return print_json(&objects.collect::<Vec<_>>());
    }
    let lines = items.map(|it| csv_line(fields.iter().map(|field| field.text(it, &times))));
    print(lines.collect::<String>().as_bytes())
}
