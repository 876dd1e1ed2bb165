//! Grafana's variables in texts: `$name`, `${name}` and `${name:format}`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

// A name begins with no digit, so that the groups of a regular expression (`$1`) are left alone.
static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?::(\w+))?\}").expect("a regular expression"));

/// Puts `value(name, format)` in the place of each variable.
///
/// # Errors
/// `value` has none for one of them.
pub(crate) fn replace(
    text: &str,
    value: impl Fn(&str, Option<&str>) -> Result<String, String>,
) -> Result<String, String> {
    let mut failure = None;
    let replaced = VARIABLE.replace_all(text, |found: &Captures<'_>| {
        let format = found.get(3).map(|format| format.as_str());
        value(name(found), format).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            String::new()
        })
    });
    match failure {
        None => Ok(replaced.into_owned()),
        Some(error) => Err(error),
    }
}

/// The names of all variables in a text.
pub(crate) fn names(text: &str) -> Vec<String> {
    let found = VARIABLE.captures_iter(text);
    found.map(|found| name(&found).to_owned()).collect()
}

fn name<'a>(found: &'a Captures<'_>) -> &'a str {
    found.get(1).or(found.get(2)).map_or("", |name| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_variable_is_replaced() {
        let text = r#"a{b=~"$job",c="${host:raw}"}[${range}] $__range_s"#;
        let replaced = replace(text, |name, format| Ok(format!("<{name}|{}>", format.unwrap_or_default())));
        assert_eq!(replaced.unwrap(), r#"a{b=~"<job|>",c="<host|raw>"}[<range|>] <__range_s|>"#);
    }

    #[test]
    fn a_variable_without_a_value_is_told() {
        let refused = replace("$nobody", |name, _| Err(format!("there is no ${name}")));
        assert_eq!(refused.unwrap_err(), "there is no $nobody");
    }

    #[test]
    fn a_group_of_a_regular_expression_is_no_variable() {
        assert_eq!(names(r#"label_replace(a{b=~"$c"}, "b", "$1", "c", "(.*)")"#), ["c"]);
    }
}
