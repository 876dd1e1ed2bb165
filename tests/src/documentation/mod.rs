//! The blocks of commands of README.md, CONTRIBUTING.md and docs/, and where people type them.

mod shown;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use regex::Regex;

use self::shown::prints;
use crate::http::free_port;
use crate::session::Session;

pub const EXPORTER_PORT: u16 = 9820;

/// The port that replaces genv-exporter's port when pages are run: another program may hold
/// [`EXPORTER_PORT`], as the first of README's two commands does.
pub static PORT_HERE: LazyLock<u16> = LazyLock::new(|| free_port().expect("a free port"));

fn with_port_here(text: &str) -> String {
    text.replace(&EXPORTER_PORT.to_string(), &PORT_HERE.to_string())
}

/// Where a block of commands is typed: the second word behind its fence, as in `sh lab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A user's bash on a machine with eight GPUs.
    Lab,
    LabZsh,
    LabFish,
    /// root's bash on a machine with systemd, where the packages lie in the current folder.
    Machine,
    /// A user's bash from which three hosts can be reached over SSH.
    Hosts,
    /// root's bash in the source folder, with Docker and Compose.
    Docker,
    Source,
    /// root's bash on a machine whose GPU or driver is at fault: nobody has one, so that nothing is run there.
    Hardware,
}

impl Place {
    pub const ALL: [(&str, Self); 8] = [
        ("lab", Self::Lab),
        ("lab-zsh", Self::LabZsh),
        ("lab-fish", Self::LabFish),
        ("machine", Self::Machine),
        ("hosts", Self::Hosts),
        ("docker", Self::Docker),
        ("source", Self::Source),
        ("hardware", Self::Hardware),
    ];

    fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find_map(|(known, place)| (known == name).then_some(place))
    }

    /// Whether all ports are free there, as the machine has a network of its own.
    fn has_own_network(self) -> bool {
        matches!(self, Self::Machine | Self::Docker)
    }
}

pub struct Page {
    pub name: String,
    pub text: String,
}

pub struct Block {
    /// The line of the page on which it begins, counted from 1.
    pub line: usize,
    pub info: String,
    pub text: String,
}

/// A command of a page, of one line or of several that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The line of the page on which it begins, counted from 1.
    pub number: usize,
    pub text: String,
}

/// The commands of a block, and what the page shows of their output.
pub struct Run {
    pub lines: Vec<Line>,
    /// The block `console` that follows, if there is one.
    pub shown: Option<String>,
}

impl Page {
    pub fn all() -> Result<Vec<Self>> {
        Self::read(with_port_here)
    }

    fn read(adapt: fn(&str) -> String) -> Result<Vec<Self>> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut names = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
        for entry in fs::read_dir(repository.join("docs"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                names.push(format!("docs/{name}"));
            }
        }
        names.sort();
        ensure!(names.len() > 10, "only {names:?}");
        let read = |name: String| {
            let text = fs::read_to_string(repository.join(&name));
            let text = adapt(&text.with_context(|| name.clone())?);
            Ok(Self { name, text })
        };
        names.into_iter().map(read).collect()
    }

    pub fn each_with(place: Place, mut run: impl FnMut(&Self) -> Result<()>) -> Result<()> {
        let mut faults = Vec::new();
        let adapt = if place.has_own_network() { str::to_owned } else { with_port_here };
        for page in Self::read(adapt)? {
            if !page.runs(place).is_empty() {
                faults.extend(run(&page).err().map(|fault| format!("{fault:#}")));
            }
        }
        ensure!(faults.is_empty(), "{}", faults.join("\n\n"));
        Ok(())
    }

    pub fn place_of(&self, line: &Line) -> String {
        format!("{}:{}: {}", self.name, line.number, line.text)
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut inside = false;
        for (event, range) in Parser::new(&self.text).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    inside = true;
                    blocks.push(Block {
                        line: self.line(range.start),
                        info: match kind {
                            CodeBlockKind::Fenced(info) => info.into_string(),
                            CodeBlockKind::Indented => String::new(),
                        },
                        text: String::new(),
                    });
                }
                Event::Text(text) if inside => {
                    if let Some(block) = blocks.last_mut() {
                        block.text.push_str(&text);
                    }
                }
                Event::End(TagEnd::CodeBlock) => inside = false,
                _ => {}
            }
        }
        blocks
    }

    pub fn runs(&self, place: Place) -> Vec<Run> {
        let blocks = self.blocks();
        let typed = blocks.iter().enumerate();
        let typed = typed.filter(|(_, block)| block.places().contains(&place));
        let run = |(index, block): (usize, &Block)| {
            let next = blocks.get(index + 1);
            Run {
                lines: block.lines(),
                shown: next.filter(|next| next.info == "console").map(|next| next.text.clone()),
            }
        };
        typed.map(run).collect()
    }

    pub fn typed(&self, place: Place) -> Vec<Line> {
        let runs = self.runs(place).into_iter();
        runs.flat_map(|run| run.lines).collect()
    }

    /// Types all that the page has for one place into a shell; every line has to succeed, and to print what is shown.
    /// What is started in the background has been ended then. `before` is called with each line.
    pub fn follow(
        &self,
        place: Place,
        mut session: Session,
        mut before: impl FnMut(&Line) -> Result<()>,
    ) -> Result<()> {
        for run in self.runs(place) {
            let mut printed = String::new();
            let mut at = String::new();
            for line in &run.lines {
                at = self.place_of(line);
                before(line).with_context(|| at.clone())?;
                printed += &session.succeed(&line.text).with_context(|| at.clone())?;
            }
            if let Some(shown) = &run.shown {
                prints(shown, &printed).context(at)?;
            }
        }
        session.finish().with_context(|| self.name.clone())
    }

    fn line(&self, offset: usize) -> usize {
        self.text[..offset].matches('\n').count() + 1
    }
}

impl Block {
    pub fn is_commands(&self) -> bool {
        let language = self.info.split_whitespace().next().unwrap_or_default();
        ["sh", "bash", "zsh", "fish", "shell"].contains(&language)
    }

    /// Where its commands are typed, each place in a shell of its own; none if it names none, or one that is not known.
    pub fn places(&self) -> Vec<Place> {
        let Some(names) = self.info.strip_prefix("sh ") else {
            return Vec::new();
        };
        let places = names.split_whitespace().map(Place::named);
        places.collect::<Option<_>>().unwrap_or_default()
    }

    /// Its commands: each line is one, with those that it continues on by a backslash, and with its here-document.
    pub fn lines(&self) -> Vec<Line> {
        let here_document = Regex::new(r#"<<-?\s*['"]?(\w+)"#).expect("a regular expression");
        let mut commands = Vec::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((index, first)) = lines.next() {
            if first.trim().is_empty() || first.starts_with('#') {
                continue;
            }
            let mut text = first.to_owned();
            let mut end = here_document.captures(first).map(|found| found[1].to_owned());
            while end.is_some() || text.ends_with('\\') {
                let Some((_, next)) = lines.next() else {
                    break;
                };
                text = format!("{text}\n{next}");
                end = end.filter(|end| end != next);
            }
            commands.push(Line { number: self.line + 1 + index, text });
        }
        commands
    }
}
