//! The page at `/`, for a person who opens the port in a browser.

use std::fmt::{self, Write};

use crate::Response;

/// One link of a landing page.
#[derive(Clone, Debug)]
pub struct Link {
    /// The path, made relative so that the page works behind a reverse proxy's prefix.
    pub path: String,
    /// What is clicked.
    pub text: String,
    /// What is found there.
    pub description: String,
}

/// What a daemon says of itself at `/`: one page that loads nothing else.
#[derive(Clone, Debug)]
pub struct LandingPage {
    /// The program's name, as its heading.
    pub name: String,
    /// What the program is, in a sentence.
    pub description: String,
    /// The program's version.
    pub version: String,
    /// Where to go from here.
    pub links: Vec<Link>,
}

const STYLE: &str = "body{margin:0;font:16px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fff}\
    header{background:#40617f;color:#fff;padding:.75rem 1.25rem}h1{font-size:1.4rem;margin:0}\
    main{padding:.5rem 1.25rem;max-width:50rem}\
    @media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#181a1b}a{color:#8ab4f8}}";

impl LandingPage {
    /// The page, ready to be served. Every text is escaped.
    pub fn response(&self) -> Response {
        Response::html(self.to_string())
    }
}

impl fmt::Display for LandingPage {
    fn fmt(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, description) = (Escaped(&self.name), Escaped(&self.description));
        let version = Escaped(&self.version);
        writeln!(
            page,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"
        )?;
        writeln!(
            page,
            "<meta name=\"viewport\" content=\"width=device-width\">"
        )?;
        writeln!(
            page,
            "<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>"
        )?;
        writeln!(
            page,
            "<header><h1>{name}</h1></header>\n<main>\n<p>{description}</p>"
        )?;
        writeln!(page, "<p>Version {version}</p>\n<ul>")?;
        for link in &self.links {
            let path = Escaped(link.path.trim_start_matches('/'));
            let (text, description) = (Escaped(&link.text), Escaped(&link.description));
            writeln!(
                page,
                "<li><a href=\"./{path}\">{text}</a>: {description}</li>"
            )?;
        }
        writeln!(page, "</ul>\n</main>\n</body>\n</html>")
    }
}

struct Escaped<'a>(&'a str);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_machine_cannot_become_markup() {
        let hostile = "<script>\"'&".to_owned();
        let page = LandingPage {
            name: hostile.clone(),
            description: hostile.clone(),
            version: hostile.clone(),
            links: vec![Link {
                path: format!("/{hostile}"),
                text: hostile.clone(),
                description: hostile,
            }],
        }
        .to_string();
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(
            page.matches("&lt;script&gt;&quot;&#39;&amp;").count(),
            7,
            "{page}"
        );
        assert!(page.contains("href=\"./&lt;script"), "{page}");
    }
}
