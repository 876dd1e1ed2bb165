//! The keys of hosts, by OpenSSH's files `known_hosts`; sshd(8) describes their format.
//!
//! genv only reads the files. It refuses an unknown key, since no person can be asked to accept it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use russh::keys::{Algorithm, HashAlg, PublicKey};

use crate::script::quoted;
use crate::{FailureKind, HostFailure};

mod line;

pub(crate) use line::patterns_match;
use line::{KnownHostsLine, Marker, matching_lines};

/// The largest size of a file.
const LONGEST_FILE_BYTES: u64 = 64 << 20;

/// The lines of the files for one host.
#[derive(Debug)]
pub(crate) struct KnownHost {
    /// The name in the files: `gpu01`, or `[gpu01]:2222`.
    name: String,
    /// The arguments of `ssh` for this host, for messages.
    login: String,
    /// The files. `ssh` adds keys to the first one.
    files: Vec<PathBuf>,
    lines: Vec<KnownHostsLine>,
}

impl KnownHost {
    /// Reads the lines for a host. As with OpenSSH, a missing file counts as empty, and an invalid line is skipped. `login`:
    /// the arguments of `ssh` for this host, for messages.
    ///
    /// # Errors
    /// A file exists and cannot be read: it may have a line that revokes a key.
    pub(crate) fn read(
        files: &[PathBuf],
        host: &str,
        port: u16,
        alias: Option<&str>,
        login: &str,
    ) -> Result<Self, HostFailure> {
        let host = host.to_ascii_lowercase();
        let (name, without_port) = match alias {
            Some(alias) => (alias.to_ascii_lowercase(), None),
            None if port == 22 => (host, None),
            None => (format!("[{host}]:{port}"), Some(host)),
        };
        let mut known = Self { name, login: login.to_owned(), files: files.to_vec(), lines: Vec::new() };
        let mut texts = Vec::new();
        for path in files {
            texts.push((path, read(path)?));
        }
        let lines_of = |name: &str| -> Vec<KnownHostsLine> {
            let of = |(path, text): &(&PathBuf, String)| matching_lines(path, text, name);
            texts.iter().flat_map(of).collect()
        };
        known.lines = lines_of(&known.name);
        // As with OpenSSH, a key of port 22 is valid at other ports too. A different key there is not a changed key.
        if let Some(name) = without_port {
            let known_here = known.is_known();
            known.lines.extend(
                lines_of(&name)
                    .into_iter()
                    .filter(|line| line.marker == Marker::Revoked || !known_here)
                    .map(|line| KnownHostsLine { at_other_port: true, ..line }),
            );
        }
        Ok(known)
    }

    /// The algorithms of the known keys, so that a server with several keys shows a known one. All algorithms if no key is
    /// known.
    pub(crate) fn algorithms(&self) -> Vec<Algorithm> {
        let sha2 = [HashAlg::Sha512, HashAlg::Sha256];
        let all = [
            Algorithm::Ed25519,
            Algorithm::Ecdsa { curve: russh::keys::EcdsaCurve::NistP256 },
            Algorithm::Ecdsa { curve: russh::keys::EcdsaCurve::NistP384 },
            Algorithm::Ecdsa { curve: russh::keys::EcdsaCurve::NistP521 },
        ]
        .into_iter()
        .chain(sha2.map(|hash| Algorithm::Rsa { hash: Some(hash) }));
        let known = |algorithm: &Algorithm| self.key_lines().any(|line| same_kind(algorithm, &line.key));
        if self.is_known() { all.filter(known).collect() } else { all.collect() }
    }

    /// Whether the files have a key of the host.
    pub(crate) fn is_known(&self) -> bool {
        self.key_lines().next().is_some()
    }

    /// Checks a key that the host shows.
    ///
    /// # Errors
    /// The key is revoked, unknown, or different from the known key. The text has the remedy.
    pub(crate) fn check(&self, key: &PublicKey) -> Result<(), HostFailure> {
        let refused = |message: String| Err(HostFailure::new(FailureKind::HostKey, message));
        let kind = kind(key);
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let same = |line: &&KnownHostsLine| line.key.key_data() == key.key_data();
        let mut revoked = self.lines.iter().filter(|line| line.marker == Marker::Revoked);
        if let Some(line) = revoked.find(same) {
            return refused(format!(
                "cannot trust it: its {kind} key {fingerprint} is revoked at {}:{}. Give it a new host key with \
                 'ssh-keygen -A' there after removing the old, and ask who revoked it",
                line.path.display(),
                line.number
            ));
        }
        if self.key_lines().any(|line| same(&line)) {
            return Ok(());
        }
        let mut here = self.key_lines().filter(|line| !line.at_other_port);
        if let Some(line) = here.find(|line| same_kind(&key.algorithm(), &line.key)) {
            let path = line.path.display();
            return refused(format!(
                "cannot trust it: its {kind} key {fingerprint} is not the one at {path}:{}. The network may have been \
                                 attacked, or the host was installed anew: compare with 'ssh-keygen -lf' of its key there, then remove the old one \
                 with: ssh-keygen -f {} -R {} and accept the new one with: ssh {} true",
                line.number,
                quoted(&line.path.to_string_lossy()),
                quoted(&self.name),
                self.login
            ));
        }
        self.unknown(&format!("its {kind} key {fingerprint} is not"))
    }

    /// The error of a host without a key of any known kind.
    pub(crate) fn no_such_kind(&self) -> HostFailure {
        let known: Vec<String> = self
            .key_lines()
            .map(|line| {
                let kind = kind(&line.key);
                format!("{kind} at {}:{}", line.path.display(), line.number)
            })
            .collect();
        HostFailure::new(
            FailureKind::HostKey,
            format!(
                "cannot trust it: it no longer has a key of the kind that is known ({}). Compare its keys there with \
                 'ssh-keygen -lf', then accept another with: ssh {} true",
                known.join(", "),
                self.login
            ),
        )
    }

    fn unknown(&self, what: &str) -> Result<(), HostFailure> {
        let mut authorities = self.lines.iter();
        if let Some(line) = authorities.find(|line| line.marker == Marker::CertificateAuthority) {
            return Err(HostFailure::new(
                FailureKind::Unsupported,
                format!(
                    "cannot trust it: {what} in known_hosts, and {}:{} trusts an authority (@cert-authority), whose \
                     certificates are not checked here. Add the key itself with: {}",
                    line.path.display(),
                    line.number,
                    self.keyscan_command()
                ),
            ));
        }
        let files: Vec<String> = self.files.iter().map(|path| path.display().to_string()).collect();
        let files = match files.as_slice() {
            [] => "any file, as UserKnownHostsFile and GlobalKnownHostsFile name none".to_owned(),
            files => files.join(", "),
        };
        Err(HostFailure::new(
            FailureKind::HostKey,
            format!(
                "cannot trust it: {what} in {files}, where {} is looked for. Compare it with 'ssh-keygen -lf' of its \
                 key there, then accept it with: ssh {} true",
                self.name, self.login
            ),
        ))
    }

    /// The command that adds the host's key to the file.
    fn keyscan_command(&self) -> String {
        let file = self.files.first().map(|path| path.to_string_lossy().into_owned());
        let (port, host) = match self.name.strip_prefix('[').and_then(|name| name.rsplit_once("]:")) {
            Some((host, port)) => (format!("-p {port} "), host),
            None => (String::new(), self.name.as_str()),
        };
        format!("ssh-keyscan {port}{} >> {}", quoted(host), quoted(file.as_deref().unwrap_or("~/.ssh/known_hosts")))
    }

    /// Lines without a marker: keys of the host itself.
    fn key_lines(&self) -> impl Iterator<Item = &KnownHostsLine> {
        self.lines.iter().filter(|line| line.marker == Marker::None)
    }
}

fn read(path: &Path) -> Result<String, HostFailure> {
    let failed = |error: io::Error| {
        HostFailure::new(
            FailureKind::HostKey,
            format!(
                "cannot check its key: {} cannot be read: {error}. Make it readable for the user of this program, or set \
                 UserKnownHostsFile and GlobalKnownHostsFile in ~/.ssh/config",
                path.display()
            ),
        )
    };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(failed(error)),
    };
    // Users set the option to /dev/null to have no such file.
    if !metadata.is_file() {
        return Ok(String::new());
    }
    if metadata.len() > LONGEST_FILE_BYTES {
        return Err(failed(io::Error::other("it is too long")));
    }
    let bytes = fs::read(path).map_err(failed)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Whether a key is of an algorithm, without regard to the hash of signatures.
fn same_kind(algorithm: &Algorithm, key: &PublicKey) -> bool {
    match (algorithm, key.algorithm()) {
        (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
        (algorithm, other) => *algorithm == other,
    }
}

/// The name of a key's algorithm in the output of `ssh-keygen -l`.
fn kind(key: &PublicKey) -> String {
    match key.algorithm() {
        Algorithm::Ed25519 => "ED25519".to_owned(),
        Algorithm::Ecdsa { .. } => "ECDSA".to_owned(),
        Algorithm::Rsa { .. } => "RSA".to_owned(),
        other => other.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests;
