//! The page at `/`, for a browser.

use std::fmt;

use crate::Response;
use crate::page::{Escaped, Page};

/// One link of a landing page.
#[derive(Clone, Debug)]
pub struct PageLink {
    /// The path, made relative so that the page works behind a reverse proxy's prefix.
    pub path: String,
    /// The text of the link.
    pub text: String,
    /// The description of the linked page.
    pub description: String,
}

/// The description of a daemon at `/`: one page that loads no other file.
#[derive(Clone, Debug)]
pub struct LandingPage {
    /// The program's name, as its heading.
    pub name: String,
    /// What the program is, in a sentence.
    pub description: String,
    /// The program's version.
    pub version: String,
    /// Links to the other pages.
    pub links: Vec<PageLink>,
}

impl LandingPage {
    /// The page, ready to be served. Every text is escaped.
    pub fn response(&self) -> Response {
        Page { title: &self.name, main: self }.response()
    }
}

/// The main part of the page.
impl fmt::Display for LandingPage {
    fn fmt(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (description, version) = (Escaped(&self.description), Escaped(&self.version));
        writeln!(page, "<p>{description}</p>\n<p>Version {version}</p>\n<ul>")?;
        for link in &self.links {
            let path = Escaped(link.path.trim_start_matches('/'));
            let (text, description) = (Escaped(&link.text), Escaped(&link.description));
            writeln!(page, "<li><a href=\"./{path}\">{text}</a>: {description}</li>")?;
        }
        writeln!(page, "</ul>")
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
            links: vec![PageLink { path: format!("/{hostile}"), text: hostile.clone(), description: hostile }],
        }
        .response();
        let page = String::from_utf8(page.body().to_vec()).unwrap();
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;&quot;&#39;&amp;").count(), 7, "{page}");
        assert!(page.contains("href=\"./&lt;script"), "{page}");
    }
}
