//! The layout of all HTML pages.

use std::fmt::{self, Write};

use crate::Response;

const STYLE: &str = "body{margin:0;font:16px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fff}\
    header{background:#40617f;color:#fff;padding:.75rem 1.25rem}header h1{font-size:1.4rem;margin:0}\
    main{padding:.5rem 1.25rem;max-width:50rem}pre{overflow:auto}\
    table{border-collapse:collapse}th,td{padding:.2rem .6rem;border:1px solid #8888;text-align:left}\
    @media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#181a1b}a{color:#8ab4f8}}";

/// A page that loads no other file.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a, Main> {
    /// Its heading, which is escaped.
    pub title: &'a str,
    /// The HTML below the heading.
    pub main: Main,
}

impl<Main: fmt::Display> Page<'_, Main> {
    /// The page, ready to be served.
    pub fn response(&self) -> Response {
        let (title, main) = (Escaped(self.title), &self.main);
        Response::html(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <header><h1>{title}</h1></header>\n<main>\n{main}</main>\n</body>\n</html>\n"
        ))
    }
}

/// A text whose `Display` is escaped for HTML.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => page.write_str("&amp;")?,
                '<' => page.write_str("&lt;")?,
                '>' => page.write_str("&gt;")?,
                '"' => page.write_str("&quot;")?,
                '\'' => page.write_str("&#39;")?,
                other => page.write_char(other)?,
            }
        }
        Ok(())
    }
}
