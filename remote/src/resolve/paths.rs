//! Paths in OpenSSH's configuration: ssh_config(5), sections TOKENS and ENVIRONMENT VARIABLES.

use std::env;
use std::path::PathBuf;

/// The values of tokens such as `%h`.
pub(super) struct Tokens {
    values: Vec<(char, String)>,
    home: PathBuf,
    /// Reads an environment variable; tests replace this function, and the next one.
    variable: fn(&str) -> Option<String>,
    /// Finds the login name for `%u`. The lookup can ask a server, and few configurations have this token.
    login_name: fn() -> Option<String>,
}

impl Tokens {
    /// The tokens of a host. `given`: the name in the arguments of `ssh`. The other values are from `ssh -G`.
    pub(super) fn new(
        given: &str,
        address: &str,
        port: u16,
        user: &str,
        alias: Option<&str>,
        jump: Option<&str>,
    ) -> Self {
        let home = env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        let uid = rustix::process::getuid().as_raw();
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = node.split('.').next().unwrap_or_default().to_owned();
        let values = vec![
            ('%', "%".to_owned()),
            ('d', home.to_string_lossy().into_owned()),
            ('h', address.to_owned()),
            ('i', uid.to_string()),
            ('j', jump.unwrap_or_default().to_owned()),
            ('k', alias.unwrap_or(address).to_owned()),
            ('L', short),
            ('l', node),
            ('n', given.to_owned()),
            ('p', port.to_string()),
            ('r', user.to_owned()),
        ];
        Self { values, home, variable: |name| env::var(name).ok(), login_name }
    }

    /// Expands `~`, tokens and `${VARIABLES}` in a path. Unknown ones stay unchanged, so that the error of the missing file
    /// shows them.
    pub(super) fn expanded(&self, path: &str) -> PathBuf {
        let mut expanded = String::new();
        let mut rest = path;
        while let Some(at) = rest.find(['%', '$']) {
            let (before, from) = rest.split_at(at);
            expanded.push_str(before);
            let (text, after) = self.next(from);
            expanded.push_str(&text);
            rest = after;
        }
        expanded.push_str(rest);
        self.home_expanded(&expanded)
    }

    /// Expands the token or variable at the beginning. Returns its value and the rest of the text.
    fn next<'a>(&self, from: &'a str) -> (String, &'a str) {
        if let Some((name, after)) = from.strip_prefix("${").and_then(|rest| rest.split_once('}'))
            && let Some(value) = (self.variable)(name)
        {
            return (value, after);
        }
        let mut characters = from.chars();
        let first = characters.next();
        if first == Some('%')
            && let Some(token) = characters.next()
            && let Some(value) = self.value(token)
        {
            return (value, characters.as_str());
        }
        let (first, after) = from.split_at(first.map_or(0, char::len_utf8));
        (first.to_owned(), after)
    }

    fn value(&self, token: char) -> Option<String> {
        if token == 'u' {
            return (self.login_name)();
        }
        let (_, value) = self.values.iter().find(|(name, _)| *name == token)?;
        Some(value.clone())
    }

    /// Expands `~` alone in a path.
    pub(super) fn home_expanded(&self, path: &str) -> PathBuf {
        match path.strip_prefix("~/") {
            Some(rest) => self.home.join(rest),
            None => PathBuf::from(path),
        }
    }

    /// The socket of the agent, by the value of IdentityAgent.
    pub(super) fn agent(&self, value: Option<&str>) -> Option<PathBuf> {
        let variable = |name: &str| (self.variable)(name).filter(|path| !path.is_empty());
        match value {
            Some("none") => None,
            None | Some("" | "SSH_AUTH_SOCK") => variable("SSH_AUTH_SOCK").map(PathBuf::from),
            Some(value) => match value.strip_prefix('$') {
                Some(name) if !name.starts_with('{') => variable(name).map(PathBuf::from),
                _ => Some(self.expanded(value)),
            },
        }
    }
}

/// The name of the user who runs this program.
fn login_name() -> Option<String> {
    let user = uzers::get_user_by_uid(rustix::process::getuid().as_raw())?;
    Some(user.name().to_string_lossy().into_owned())
}

/// Splits a list of paths that `ssh -G` prints without quotes. A word that cannot start a path belongs to the path before.
pub(super) fn split(paths: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in paths.split(' ') {
        match all.last_mut() {
            Some(before) if !word.starts_with(['/', '~', '.']) => {
                before.push(' ');
                before.push_str(word);
            }
            _ => all.push(word.to_owned()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let mut tokens = Tokens::new("gpu01", "10.0.0.1", 2222, "alice", None, Some("bastion"));
        tokens.home = PathBuf::from("/home/alice");
        tokens.variable = |name| match name {
            "SSH_AUTH_SOCK" => Some("/run/agent".to_owned()),
            "KEYS" => Some("/keys".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        tokens.login_name = || Some("alice".to_owned());
        tokens
    }

    #[test]
    fn tokens_variables_and_the_home_directory_are_expanded() {
        for (written, expected) in [
            ("~/.ssh/id", "/home/alice/.ssh/id"),
            ("${KEYS}/%n-%h-%p-%r-%j-%k", "/keys/gpu01-10.0.0.1-2222-alice-bastion-10.0.0.1"),
            ("/a%%h%", "/a%h%"),
            ("/%x/${NONE}/$KEYS", "/%x/${NONE}/$KEYS"),
            ("/keys/%u", "/keys/alice"),
            ("%d/%", "/"),
            ("relative~/x", "relative~/x"),
        ] {
            let tokens = tokens();
            let expected = if written.starts_with("%d") {
                format!("{}/%", env::home_dir().unwrap_or_default().display())
            } else {
                expected.to_owned()
            };
            assert_eq!(tokens.expanded(written), PathBuf::from(expected), "{written}");
        }
    }

    #[test]
    fn the_token_of_a_login_name_that_is_unknown_stays() {
        let mut tokens = tokens();
        tokens.login_name = || None;
        assert_eq!(tokens.expanded("/keys/%u"), PathBuf::from("/keys/%u"));
    }

    #[test]
    fn the_agent_is_the_configured_one() {
        let path = |path: &str| Some(PathBuf::from(path));
        for (written, expected) in [
            (None, path("/run/agent")),
            (Some("SSH_AUTH_SOCK"), path("/run/agent")),
            (Some("none"), None),
            (Some("$KEYS"), path("/keys")),
            (Some("$NONE"), None),
            (Some("$EMPTY"), None),
            (Some("${KEYS}/agent"), path("/keys/agent")),
            (Some("~/agent"), path("/home/alice/agent")),
        ] {
            assert_eq!(tokens().agent(written), expected, "{written:?}");
        }
    }
}
