//! The frame of all HTML pages: header, style, script and foot.
//!
//! The style and the script are files of their own (see [`asset`]), so that the browser takes neither from the page itself.
//! The script reads the page again, and changes what differs; without scripts the browser loads the page again. All links
//! are relative, so that pages work behind a reverse proxy's prefix.

use std::sync::LazyLock;
use std::time::Duration;

use genv_core::text::rfc3339;
use hyper::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use crate::metrics::{LazyText, TextSink};
use crate::{Encoding, Request, Response, build};

/// The least time between two loads of a page without scripts, in seconds.
const SHORTEST_RELOAD: u64 = 10;

/// Four GPUs, one of them free.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Crect width='16' height='16' rx='3' fill='%230b5fa5'/%3E\
    %3Cpath d='M4 4h3v3H4zm5 0h3v3H9zM4 9h3v3H4z' fill='%23fff'/%3E\
    %3Cpath d='M9 9h3v3H9z' fill='%237ee2a0'/%3E%3C/svg%3E";

/// A page with a header, a main part and a foot. All texts are escaped.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// Its heading.
    pub title: &'a str,
    /// Some words beside the heading.
    pub facts: Markup,
    /// The HTML between heading and foot.
    pub main: Markup,
    /// How the page follows its subject; absent for a page that does not change.
    pub live: Option<Live>,
    /// The foot; absent for a page that others link.
    pub foot: Option<&'a Foot>,
}

/// How a page follows its subject.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The time between two versions of the page.
    pub interval: Duration,
    /// The number of this version: the browser says so if it stays the same for several intervals.
    pub sequence: u64,
    /// When the values were read, Unix time; absent if that is not known.
    pub timestamp_seconds: Option<f64>,
}

/// The foot of the pages of a daemon.
#[derive(Clone, Debug)]
pub struct Foot {
    description: String,
    version: String,
    links: Vec<[String; 3]>,
}

impl Page<'_> {
    /// The HTML of the page.
    pub fn html(&self) -> String {
        let live = self.live.as_ref();
        let seconds = live.map(|it| it.interval.as_secs_f64());
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · genv" }
                    link rel="icon" href=(ICON);
                    link rel="stylesheet" href={ "./page.css?v=" (*VERSION) };
                    @if let Some(seconds) = seconds {
                        script src={ "./page.js?v=" (*VERSION) } defer {}
                        noscript { meta http-equiv="refresh" content=(reload_seconds(seconds)); }
                    }
                }
                body data-interval=[seconds] data-sequence=[live.map(|it| it.sequence)] {
                    header {
                        a.brand href="./" { "genv" }
                        div.facts data-live {
                            h1 { (self.title) }
                            (self.facts)
                            @if let Some(time) = live.and_then(|it| it.timestamp_seconds).and_then(rfc3339) {
                                p { "as of " time datetime=(time) { (time) } }
                            }
                        }
                        @if live.is_some() { p #status role="status" {} }
                    }
                    main data-live { (self.main) }
                    @if let Some(foot) = self.foot { (foot.html()) }
                }
            }
        };
        document.into_string()
    }

    /// The page, ready to be served.
    pub fn response(&self) -> Response {
        Response::html(Encoding::Plain, self.html())
    }
}

impl Foot {
    /// A foot with a description of the program in sentences, and with links. A link has a path, a text, and a description
    /// of the linked page.
    pub fn new(description: &str, links: &[[&str; 3]]) -> Self {
        let version = format!("{}, revision {}", build::VERSION, build::REVISION);
        let links = links.iter().map(|link| link.map(str::to_owned)).collect();
        Self { description: description.to_owned(), version, links }
    }

    fn html(&self) -> Markup {
        html! {
            footer {
                p { (self.description) " Version " (self.version) "." }
                nav aria-label="Other pages" {
                    ul {
                        @for [path, text, description] in &self.links {
                            li { a href={ "./" (path.trim_start_matches('/')) } { (text) } " " (description) }
                        }
                    }
                }
            }
        }
    }
}

fn reload_seconds(interval: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
    let seconds = interval.ceil() as u64;
    seconds.max(SHORTEST_RELOAD)
}

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");

/// A hash of style and script: browsers keep them as long as they are the same.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let digest = Sha256::new().chain_update(STYLE).chain_update(SCRIPT).finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

/// The answer at `/page.css` or `/page.js`.
pub fn asset(request: &Request<'_>) -> Option<Response> {
    static TEXTS: LazyLock<[LazyText; 2]> = LazyLock::new(Default::default);
    let (kind, text, asset) = match request.path() {
        "/page.css" => ("text/css; charset=utf-8", &TEXTS[0], STYLE),
        "/page.js" => ("text/javascript; charset=utf-8", &TEXTS[1], SCRIPT),
        _ => return None,
    };
    let encoding = request.encoding();
    let body = text.encoded(encoding, |out: TextSink<'_>| out(asset.as_bytes()));
    let caching = match request.query_value("v") {
        Some(version) if version == *VERSION => "max-age=31536000, immutable",
        _ => "no-cache",
    };
    Some(
        Response::encoded(encoding, HeaderValue::from_static(kind), body)
            .with_header(CACHE_CONTROL, HeaderValue::from_static(caching))
            .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    )
}

#[cfg(test)]
mod tests {
    use hyper::Method;
    use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap};

    use super::*;

    fn page() -> Response {
        let hostile = "<script>\"&".to_owned();
        let foot = Foot {
            version: hostile.clone(),
            ..Foot::new(&hostile, &[[&*format!("/{hostile}"), &*hostile, &*hostile]])
        };
        let live = Live { interval: Duration::from_secs(2), sequence: 7, timestamp_seconds: Some(1_795_174_860.0) };
        let main = html! { p { (hostile) } };
        Page { title: &hostile, facts: html! {}, main, live: Some(live), foot: Some(&foot) }.response()
    }

    #[test]
    fn a_page_has_its_subject_its_freshness_and_its_foot_and_all_texts_are_escaped() {
        let html = String::from_utf8(page().body().to_vec()).unwrap();
        let html = html.replace(&**VERSION, "VERSION").replace(ICON, "ICON").replace("><", ">\n<");
        insta::assert_snapshot!(html);
    }

    #[test]
    fn a_page_takes_style_and_script_only_from_its_own_server() {
        insta::assert_snapshot!(
            page().headers()[CONTENT_SECURITY_POLICY].to_str().unwrap(),
            @"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let ask = |uri: String| asset(&Request::new(&Method::GET, &uri.parse().unwrap(), &HeaderMap::new()));
        for (path, kind) in [("/page.css", "text/css; charset=utf-8"), ("/page.js", "text/javascript; charset=utf-8")] {
            for (version, caching) in [(&**VERSION, "max-age=31536000, immutable"), ("0", "no-cache")] {
                let answer = ask(format!("{path}?v={version}")).unwrap();
                assert_eq!(answer.headers()[CONTENT_TYPE], kind);
                assert_eq!(answer.headers()[CACHE_CONTROL], caching);
            }
        }
        assert!(ask("/".to_owned()).is_none());
    }
}
