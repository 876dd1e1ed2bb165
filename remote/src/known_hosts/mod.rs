//! Whose key a host has: the files `known_hosts` of OpenSSH, as sshd(8) describes their lines.
//!
//! They are only read. A key that they do not hold is refused: nobody is there to be asked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use russh::keys::{Algorithm, HashAlg, PublicKey};

use crate::script::quoted;
use crate::{FailureKind, HostFailure};

mod line;

use line::{Line, Marker, lines_about};

/// A file is not longer than this.
const LONGEST_FILE_BYTES: u64 = 64 << 20;

/// What the files say of one host.
#[derive(Clone, Debug)]
pub(crate) struct KnownHost {
    /// As the files name it: `gpu01`, or `[gpu01]:2222`.
    name: String,
    /// What a person types after `ssh` to reach it.
    login: String,
    /// The files, the first of which `ssh` writes to.
    files: Vec<PathBuf>,
    lines: Vec<Line>,
}

impl KnownHost {
    /// Reads what the files hold of a host. A file that does not exist holds nothing; nor does a line that cannot be
    /// read, as OpenSSH has it. `login` is what a person types after `ssh` to reach the host.
    ///
    /// # Errors
    /// A file exists and cannot be read: it may hold that a key is revoked.
    pub(crate) fn read(
        files: &[PathBuf],
        host: &str,
        port: u16,
        alias: Option<&str>,
        login: &str,
    ) -> Result<Self, HostFailure> {
        let host = host.to_lowercase();
        let (name, without_port) = match alias {
            Some(alias) => (alias.to_lowercase(), None),
            None if port == 22 => (host, None),
            None => (format!("[{host}]:{port}"), Some(host)),
        };
        let mut known = Self { name, login: login.to_owned(), files: files.to_vec(), lines: Vec::new() };
        let mut texts = Vec::new();
        for path in files {
            texts.push((path, read(path)?));
        }
        let lines_of = |name: &str| -> Vec<Line> {
            let of = |(path, text): &(&PathBuf, String)| lines_about(path, text, name);
            texts.iter().flat_map(of).collect()
        };
        known.lines = lines_of(&known.name);
        // OpenSSH looks there second: a key of port 22 is right here too. Another one is no change.
        if let Some(name) = without_port {
            let known_here = known.is_known();
            known.lines.extend(
                lines_of(&name)
                    .into_iter()
                    .filter(|line| line.marker == Marker::Revoked || !known_here)
                    .map(|line| Line { at_other_port: true, ..line }),
            );
        }
        Ok(known)
    }

    /// The kinds of keys that the files hold, so that a server which has several shows one that is known; all kinds
    /// where the files hold none.
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
        let known = |algorithm: &Algorithm| self.plain().any(|line| same_kind(algorithm, &line.key));
        if self.is_known() { all.filter(known).collect() } else { all.collect() }
    }

    /// Whether the files hold a key of it.
    pub(crate) fn is_known(&self) -> bool {
        self.plain().next().is_some()
    }

    /// Whether this is the host's key.
    ///
    /// # Errors
    /// It is another one, revoked, or not known: with what to do.
    pub(crate) fn check(&self, key: &PublicKey) -> Result<(), HostFailure> {
        let refused = |message: String| Err(HostFailure::new(FailureKind::HostKey, message));
        let kind = kind(key);
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let same = |line: &&Line| line.key.key_data() == key.key_data();
        let mut revoked = self.lines.iter().filter(|line| line.marker == Marker::Revoked);
        if let Some(line) = revoked.find(same) {
            return refused(format!(
                "cannot trust it: its {kind} key {fingerprint} is revoked at {}:{}. Give it a new host key with \
                 'ssh-keygen -A' there after removing the old, and ask who revoked it",
                line.path.display(),
                line.number
            ));
        }
        if self.plain().any(|line| same(&line)) {
            return Ok(());
        }
        let mut here = self.plain().filter(|line| !line.at_other_port);
        if let Some(line) = here.find(|line| same_kind(&key.algorithm(), &line.key)) {
            let path = line.path.display();
            return refused(format!(
                "cannot trust it: its {kind} key {fingerprint} is not the one at {path}:{}. Somebody may be between, \
                 or it was installed anew: compare with 'ssh-keygen -lf' of its key there, then remove the old one \
                 with: ssh-keygen -f {} -R {} and accept the new one with: ssh {} true",
                line.number,
                quoted(&line.path.to_string_lossy()),
                quoted(&self.name),
                self.login
            ));
        }
        self.unknown(&format!("its {kind} key {fingerprint} is not"))
    }

    /// The failure of a host that has no key of the kinds that are known of it.
    pub(crate) fn no_such_kind(&self) -> HostFailure {
        let known: Vec<String> = self
            .plain()
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
                    self.scan()
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

    /// The command that adds a key without a question.
    fn scan(&self) -> String {
        let file = self.files.first().map(|path| path.to_string_lossy().into_owned());
        let (port, host) = match self.name.strip_prefix('[').and_then(|name| name.rsplit_once("]:")) {
            Some((host, port)) => (format!("-p {port} "), host),
            None => (String::new(), self.name.as_str()),
        };
        format!("ssh-keyscan {port}{} >> {}", quoted(host), quoted(file.as_deref().unwrap_or("~/.ssh/known_hosts")))
    }

    /// Lines that tell the host's own key.
    fn plain(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.marker == Marker::None)
    }
}

fn read(path: &Path) -> Result<String, HostFailure> {
    let failed = |error: io::Error| {
        HostFailure::new(
            FailureKind::HostKey,
            format!(
                "cannot check its key: {} cannot be read: {error}. Let it be readable for who runs this, or set \
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
    // As /dev/null, which people name to have no such file.
    if !metadata.is_file() {
        return Ok(String::new());
    }
    if metadata.len() > LONGEST_FILE_BYTES {
        return Err(failed(io::Error::other("it is too long")));
    }
    let bytes = fs::read(path).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a key is of an algorithm, whatever hash it signs with.
fn same_kind(algorithm: &Algorithm, key: &PublicKey) -> bool {
    match (algorithm, key.algorithm()) {
        (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
        (algorithm, other) => *algorithm == other,
    }
}

/// As `ssh-keygen -l` names it.
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
