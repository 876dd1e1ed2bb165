mod check;
mod documentation;
mod meaning;
mod refusals;
mod warnings;

use super::*;

fn config(text: &str) -> Config {
    Config::parse("enforcer.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused<const N: usize>(texts: [&str; N]) -> String {
    let errors = texts.map(|text| {
        let text = format!("version: 1\n{text}\n");
        let error = Config::parse("enforcer.yaml", &text).map(|config| format!("{text}{config:#?}"));
        error.unwrap_err().to_string()
    });
    errors.join("\n")
}
