//! Command lines of other programs within sentences and tables, and in examples of help texts: each is typed in a block
//! too, is typed as it stands, is run by something that is named here, or has its reason here.

use std::sync::LazyLock;

use anyhow::Result;
use regex::Regex;

use super::{Line, Page, Place};

/// Our own programs: what they know of a line, and whether they take it, they tell themselves.
pub const PROGRAMS: [&str; 4] = ["genv", "genv-exporter", "genv-enforcer", "genv-shim"];

/// Where command lines that begin so are typed as they stand.
const PLACES: [(&str, Place); 14] = [
    ("eval", Place::Lab),
    ("export", Place::Lab),
    ("source", Place::Lab),
    ("nvidia-smi", Place::Lab),
    ("type", Place::Lab),
    ("ulimit", Place::Lab),
    ("apt", Place::Machine),
    ("dpkg", Place::Machine),
    ("journalctl", Place::Machine),
    ("systemctl", Place::Machine),
    ("systemd-analyze", Place::Machine),
    ("chmod", Place::Docker),
    ("docker", Place::Docker),
    ("ss", Place::Docker),
];

/// Command lines that begin so are run elsewhere: by which file, and what stands there.
pub const ELSEWHERE: [(&str, &str, &str); 22] = [
    ("ansible-playbook", "tests/packages/playbook.rs", "\"ansible-playbook\""),
    ("cargo build", "scripts/test", "cargo build --locked"),
    ("cargo clippy", ".ci/run", "cargo clippy --locked"),
    ("cargo doc", ".ci/run", "cargo doc --locked"),
    ("cargo fmt", ".ci/run", "cargo fmt"),
    ("cargo test", "scripts/test", "cargo test --locked"),
    ("docker compose build", "scripts/docker-images", "build exporter"),
    ("docker build", "scripts/docker-images", "docker buildx build"),
    ("docker run --gpus", "tests/commands/shims/docker.rs", "\"run\", \"--gpus\""),
    ("rm -rf $(genv root)", "tests/packages/deb.rs", "rm -rf $(genv root)"),
    ("rpm --erase", "tests/packages/rpm.rs", "\"--erase\""),
    ("rpm --query", "tests/packages/upgraded.rs", "\"--query\""),
    ("rpm --upgrade", "tests/packages/upgraded.rs", "\"--upgrade\", \"--force\""),
    ("unshare --map-root-user", "tests/root/users/mod.rs", "\"unshare\", \"-r\""),
    ("nohup systemd-run --user --scope", "tests/systemd/jobs.rs", "nohup systemd-run --user --scope JOB"),
    ("systemd-run --user --scope", "tests/systemd/jobs.rs", "systemd-run --user --scope JOB"),
    ("systemd-run --user", "tests/systemd/jobs.rs", "systemd-run --user genv exec"),
    ("loginctl enable-linger", "tests/systemd/jobs.rs", "\"loginctl\", \"enable-linger\""),
    ("scripts/man", "scripts/package", "man \"$share/man/man1\""),
    ("scripts/package", "scripts/test", "scripts/package"),
    ("scripts/run", "tests/monitoring/documented/run.rs", "scripts/run"),
    ("scripts/test", ".ci/run", "scripts/test"),
];

/// Command lines that begin so are run nowhere, and why.
pub const NOT_RUN: [(&str, &str); 24] = [
    ("…/genv", "stands for the path of genv 1.x in a line of sudoers"),
    ("@reboot", "needs a machine that starts under cron"),
    ("crontab -e", "opens an editor in a terminal"),
    ("dmesg", "needs what a driver of NVIDIA wrote into the kernel's log"),
    ("dnf", "is not in Debian 12; what it hands to rpm is run"),
    ("docker compose exec grafana grafana", "needs Grafana, which could not be had for the tests"),
    ("docker load", "needs a machine to which images are brought"),
    ("docker save", "needs a machine to which images are brought"),
    ("git restore", "is named without the file that it restores"),
    ("grafana server", "needs Grafana, which could not be had for the tests"),
    ("podman unshare", "needs Podman and its users"),
    ("lspci", "needs a GPU on a bus that can be looked at"),
    ("mesg", "needs a terminal of its own"),
    ("nvidia-ctk", "needs NVIDIA's toolkit for containers"),
    ("nvidia-smi -i INDEX", "changes a GPU"),
    ("pip install --user", "is how genv 1.x comes into a home; tests have it in a folder of its own"),
    ("pip uninstall", "needs a machine that has genv 1.x for everybody"),
    ("scripts/bench", "takes minutes of a machine that does nothing else"),
    ("scripts/pair", "takes minutes of a machine that does nothing else"),
    ("sh -c", "is what genv types on a host"),
    ("ssh -t", "is what `genv remote activate` becomes"),
    ("sudo", "asks for rights that tests have or lack; tests/peer/remote_ssh/sudo.rs asks the real one"),
    ("systemctl start docker", "needs Docker as a service"),
    ("thanos receive", "needs Thanos, which could not be had for the tests"),
];

/// What begins inline code of several words that is no command line: messages of programs, commands that are named without
/// their program, and units.
const NO_PROGRAMS: [&str; 28] = [
    "a",
    "active",
    "another",
    "b",
    "cannot",
    "connection",
    "container",
    "could",
    "devices",
    "dial",
    "envs",
    "ki",
    "listen",
    "max",
    "no",
    "not",
    "open",
    "package",
    "permission",
    "remote-serve",
    "sum",
    "topo",
    "the",
    "unknown",
    "usage",
    "version",
    "waive",
    "without",
];

/// What becomes of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// One of our programs is asked about it.
    Ours,
    /// A block that is run has it too.
    Typed,
    /// It is typed as it stands.
    Run(Place),
    /// It is in a list, under this.
    Listed(&'static str),
    /// Nobody knows.
    Unknown,
}

/// What is typed in the blocks of all pages.
#[derive(Debug)]
pub struct Passing {
    typed: Vec<Vec<String>>,
}

impl Passing {
    /// Reads all pages.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn new() -> Result<Self> {
        Ok(Self::beside(&Page::all()?))
    }

    /// Beside these pages, of which sentences have not been looked at.
    pub(super) fn beside(pages: &[Page]) -> Self {
        let places = Place::ALL.into_iter().map(|(_, place)| place);
        let run = places.filter(|place| *place != Place::Hardware);
        let typed = run.flat_map(|place| pages.iter().flat_map(move |page| page.typed(place)));
        Self { typed: typed.map(|line| words(&line.text)).collect() }
    }

    /// What becomes of a piece of inline code; none if it is no command line.
    #[must_use]
    pub fn fate(&self, text: &str) -> Option<Fate> {
        static PROGRAM: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"^[a-z…~@./][\w…~./-]*$").expect("a regular expression"));
        let line = bare(text);
        let first = line.split_once(' ')?.0;
        if !PROGRAM.is_match(first) || NO_PROGRAMS.contains(&first) {
            return None;
        }
        if PROGRAMS.contains(&first) {
            return Some(Fate::Ours);
        }
        let begins = |start: &&str| starts(line, start);
        let elsewhere = ELSEWHERE.iter().map(|(start, ..)| *start);
        let mut listed = NOT_RUN.iter().map(|(start, _)| *start).chain(elsewhere);
        let mut places = PLACES.into_iter();
        Some(if self.is_typed(line) {
            Fate::Typed
        } else if let Some(start) = listed.find(begins) {
            Fate::Listed(start)
        } else if let Some((_, place)) = places.find(|(program, _)| *program == first)
            && !line.split_whitespace().any(stands_for_another)
        {
            Fate::Run(place)
        } else {
            Fate::Unknown
        })
    }

    /// What the sentences of a page have to be typed as it stands, in their order, and where.
    pub(super) fn lines(&self, page: &Page) -> Vec<(Place, Line)> {
        let mut lines: Vec<(Place, Line)> = Vec::new();
        for span in page.spans() {
            let known = lines.iter().any(|(_, line)| line.text == span.text);
            if let Some(Fate::Run(place)) = self.fate(&span.text).filter(|_| !known) {
                lines.push((place, span));
            }
        }
        lines
    }

    /// Whether the words of a line stand in a line of a block, one after the other.
    fn is_typed(&self, line: &str) -> bool {
        let named = words(line);
        let same = |(named, typed): (&String, &String)| named == typed || stands_for_another(named);
        self.typed.iter().any(|typed| {
            let mut parts = typed.windows(named.len());
            parts.any(|part| named.iter().zip(part).all(same))
        })
    }
}

/// A command line without variables in front.
#[must_use]
pub fn bare(text: &str) -> &str {
    let mut bare = text;
    while let Some((word, rest)) = bare.split_once(' ')
        && word.contains('=')
        && word.starts_with(|first: char| first.is_ascii_uppercase())
    {
        bare = rest;
    }
    bare
}

/// Whether a word is one such as `FILE`, in whose place something else is typed.
#[must_use]
pub fn stands_for_another(word: &str) -> bool {
    let value = word.rsplit('=').next().unwrap_or_default();
    word.contains(['[', ']', '…']) || value.starts_with(|first: char| first.is_ascii_uppercase())
}

/// Whether a line begins with these words.
fn starts(line: &str, words: &str) -> bool {
    let rest = line.strip_prefix(words);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '/']))
}

/// The words of a line, without its comment.
fn words(line: &str) -> Vec<String> {
    let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    words.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;

    fn passing() -> Passing {
        let page = page("```sh lab\na && promtool check config x.yml     # b c\n```\n\n```sh hardware\nzap -a\n```\n");
        Passing::beside(&[page])
    }

    #[test]
    fn what_becomes_of_a_line_is_known_or_nobody_knows() {
        let passing = passing();
        for (line, fate) in [
            ("promtool check config", Fate::Typed),
            ("A=1 promtool check config FILE", Fate::Typed),
            ("promtool check rules", Fate::Unknown),
            ("zap -a", Fate::Unknown),
            ("systemctl start a", Fate::Run(Place::Machine)),
            ("systemctl start UNIT", Fate::Unknown),
            ("dmesg | a", Fate::Listed("dmesg")),
            ("dmesgs | a", Fate::Unknown),
            ("cargo test -p a", Fate::Listed("cargo test")),
            ("genv a", Fate::Ours),
        ] {
            assert_eq!(passing.fate(line), Some(fate), "{line}");
        }
    }

    #[test]
    fn messages_values_and_names_are_no_command_lines() {
        let passing = passing();
        for text in ["zap", "mode: enforce", "cannot load it", "-i S", "[a, b]", "N a", "{a, b}"] {
            assert_eq!(passing.fate(text), None, "{text}");
        }
    }

    #[test]
    fn a_line_that_two_sentences_have_is_typed_once() {
        let page = page("`ss -l` and `ss -l`, not `ss N`, `zap -a`; `apt x`.\n");
        let lines = passing().lines(&page);
        let lines: Vec<_> = lines.iter().map(|(place, line)| (*place, &*line.text)).collect();
        assert_eq!(lines, [(Place::Docker, "ss -l"), (Place::Machine, "apt x")]);
    }
}
