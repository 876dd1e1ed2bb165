//! Links between documents lead somewhere, and the book's contents name each page.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::Page;
use regex::Regex;

use crate::documents::{path, read};

fn documents() -> Result<Vec<String>> {
    let pages = Page::all()?.into_iter().map(|page| page.name);
    Ok(pages.chain(["CHANGELOG.md".to_owned()]).collect())
}

fn prose(page: &str) -> String {
    let mut inside = false;
    let lines = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What a heading is called in links, as GitHub and GitLab do it.
fn anchors(page: &str) -> BTreeSet<String> {
    let page = prose(page);
    let headings = page.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        title.strip_prefix(' ').filter(|_| line.starts_with('#'))
    });
    let anchor = |title: &str| {
        let kept = title.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() -> Result<()> {
    let link = Regex::new(r"\]\(([^)\s]+)\)")?;
    let mut number = 0;
    for document in documents()? {
        let page = read(&document)?;
        let folder = Path::new(&document).parent().context("no folder")?;
        for found in link.captures_iter(&prose(&page)) {
            let target = &found[1];
            if target.contains("://") {
                continue;
            }
            number += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => document.clone(),
                file => folder.join(file).to_string_lossy().into_owned(),
            };
            ensure!(path(&file).exists(), "{document}: there is no {file}");
            ensure!(anchor.is_empty() || anchors(&read(&file)?).contains(anchor), "{document}: there is no {target}");
        }
    }
    ensure!(number > 100, "only {number} links");
    Ok(())
}

#[test]
fn the_contents_name_every_page() -> Result<()> {
    let contents = read("docs/README.md")?;
    for document in documents()? {
        if let Some(page) = document.strip_prefix("docs/") {
            ensure!(
                page == "README.md" || contents.contains(&format!("]({page})")),
                "docs/README.md does not name {page}"
            );
        }
    }
    Ok(())
}
