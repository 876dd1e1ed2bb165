//! The page at `/runbooks`, the target of each alert's `runbook_url`: its meaning, and what to do.

use std::sync::LazyLock;

use genv_web::{Page, Response};
use maud::{PreEscaped, html};
use pulldown_cmark::html::push_html;
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

const TEXT: &str = include_str!("../../docs/alerts.md");

/// Rendered at the first request, since most exporters never get one.
static PAGE: LazyLock<Response> = LazyLock::new(|| {
    let (heading, text) = TEXT.split_once('\n').unwrap_or((TEXT, ""));
    let title = heading.trim_start_matches("# ");
    let main = html! { article.text { (PreEscaped(rendered(text))) } };
    Page { title, facts: html! {}, main, live: None, foot: None }.response()
});

pub(crate) fn page() -> Response {
    PAGE.clone()
}

/// The HTML of a document. Sections of the second level have their title as id, and links to pages that are not served
/// here are removed.
fn rendered(markdown: &str) -> String {
    let mut events: Vec<_> = Parser::new_ext(markdown, Options::ENABLE_TABLES).collect();
    for at in 0..events.len() {
        let title = match events.get(at + 1) {
            Some(Event::Text(title) | Event::Code(title)) => Some(title.clone()),
            _ => None,
        };
        if let Event::Start(Tag::Heading { level: HeadingLevel::H2, id, .. }) = &mut events[at] {
            *id = title;
        }
    }
    let mut html = String::with_capacity(2 * markdown.len());
    push_html(&mut html, without_relative_links(events).into_iter());
    html.shrink_to_fit();
    html
}

/// Removes links to other documents; their texts stay.
fn without_relative_links(mut events: Vec<Event<'_>>) -> Vec<Event<'_>> {
    let is_absolute = |url: &CowStr<'_>| ["#", "http://", "https://"].iter().any(|start| url.starts_with(start));
    let mut inside_relative = false;
    events.retain(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            inside_relative = !is_absolute(dest_url);
            !inside_relative
        }
        Event::End(TagEnd::Link) => !std::mem::take(&mut inside_relative),
        _ => true,
    });
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_found_by_their_titles_and_other_documents_are_not_linked() {
        let html = rendered(
            "## GenvHostDown\n\nSee [metrics](metrics.md), [the next](#GenvStale) \
             and [PromQL](https://example.org/).\n\n## `GenvStale`\n\n### Why\n\n|a|b|\n|-|-|\n|1|<2|\n",
        );
        insta::assert_snapshot!(html, @r##"
        <h2 id="GenvHostDown">GenvHostDown</h2>
        <p>See metrics, <a href="#GenvStale">the next</a> and <a href="https://example.org/">PromQL</a>.</p>
        <h2 id="GenvStale"><code>GenvStale</code></h2>
        <h3>Why</h3>
        <table><thead><tr><th>a</th><th>b</th></tr></thead><tbody>
        <tr><td>1</td><td>&lt;2</td></tr>
        </tbody></table>
        "##);
    }
}
