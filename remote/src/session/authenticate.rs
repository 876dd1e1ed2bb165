//! Authentication with keys of the agent and then of files, in the order of OpenSSH.

use std::path::Path;
use std::sync::Arc;

use russh::MethodKind;
use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey};
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

use super::ClientHandler;
use super::identities::{Identity, UnusableKey, is_hardware};
use super::refusal::Refusal;
use crate::resolve::Target;
use crate::script::quoted;

/// A key to offer.
enum Candidate {
    Agent(PublicKey),
    File(Arc<PrivateKey>),
}

/// Logs in.
pub(super) async fn authenticate(handle: &mut Handle<ClientHandler>, target: &Target) -> Result<(), Refusal> {
    let mut refusal = Refusal::default();
    let files = target.identity_files.clone();
    let read = tokio::task::spawn_blocking(move || files.into_iter().map(Identity::read).collect());
    let identities: Vec<Identity> = read.await.unwrap_or_default();
    let (mut agent, agent_keys) = match &target.identity_agent {
        None => (None, Vec::new()),
        Some(socket) => match connect_agent(handle, socket).await {
            Ok((agent, keys)) => (Some(agent), keys),
            Err(error) => {
                refusal.not_offered.push(format!("the agent at {} ({error})", socket.display()));
                (None, Vec::new())
            }
        },
    };
    let candidates = candidates(target, identities, agent_keys, &mut refusal);
    if candidates.is_empty() {
        // The result lists the host's methods.
        let result = handle.authenticate_none(&target.user).await;
        return if next_step(handle, result.ok(), &mut refusal) == NextStep::LoggedIn { Ok(()) } else { Err(refusal) };
    }
    // Queried at most once, since the query waits for a host that does not report the hash.
    let rsa_hash = OnceCell::new();
    for (name, candidate) in candidates {
        let offered = offer(handle, &target.user, candidate, agent.as_mut(), &rsa_hash);
        match offered.await {
            Err(why) => refusal.not_offered.push(format!("{name} ({why})")),
            Ok(result) => {
                refusal.offered.push(name);
                match next_step(handle, result, &mut refusal) {
                    NextStep::LoggedIn => return Ok(()),
                    NextStep::TryNext => {}
                    NextStep::Stop => break,
                }
            }
        }
    }
    Err(refusal)
}

/// Offers a key. Returns the host's result; absent if the connection ended.
///
/// # Errors
/// The key was not offered; the text is the reason.
async fn offer(
    handle: &mut Handle<ClientHandler>,
    user: &str,
    candidate: Candidate,
    agent: Option<&mut AgentClient<UnixStream>>,
    rsa_hash: &OnceCell<Option<HashAlg>>,
) -> Result<Option<AuthResult>, String> {
    let hash = signature_hash(handle, &candidate, rsa_hash).await?;
    let (key, agent) = match (candidate, agent) {
        (Candidate::File(key), _) => {
            let key = PrivateKeyWithHashAlg::new(key, hash);
            return Ok(handle.authenticate_publickey(user, key).await.ok());
        }
        (Candidate::Agent(key), Some(agent)) => (key, agent),
        (Candidate::Agent(_), None) => return Err("its agent is gone".to_owned()),
    };
    let signed = handle.authenticate_publickey_with(user, key, hash, agent);
    match signed.await {
        Ok(result) => Ok(Some(result)),
        // For example an agent whose user does not confirm the use of the key.
        Err(error) if !handle.is_closed() => Err(format!("the agent does not sign with it: {error}")),
        Err(_) => Ok(None),
    }
}

/// The hash for signatures with a key. RSA keys have several, of which the host accepts some.
async fn signature_hash(
    handle: &Handle<ClientHandler>,
    candidate: &Candidate,
    rsa_hash: &OnceCell<Option<HashAlg>>,
) -> Result<Option<HashAlg>, String> {
    let algorithm = match candidate {
        Candidate::Agent(key) => key.algorithm(),
        Candidate::File(key) => key.algorithm(),
    };
    if !matches!(algorithm, Algorithm::Rsa { .. }) {
        return Ok(None);
    }
    let ask = || async {
        let best = handle.best_supported_rsa_hash().await.ok().flatten();
        // A host that does not report its hashes probably supports SHA-512, as all servers have for years.
        best.unwrap_or(Some(HashAlg::Sha512))
    };
    match rsa_hash.get_or_init(ask).await {
        None => Err("it accepts RSA only with SHA-1: update its sshd".to_owned()),
        hash => Ok(*hash),
    }
}

#[derive(PartialEq, Eq)]
enum NextStep {
    LoggedIn,
    TryNext,
    Stop,
}

/// The next step after a result. Absent result: the connection ended.
fn next_step(handle: &Handle<ClientHandler>, result: Option<AuthResult>, refusal: &mut Refusal) -> NextStep {
    match result {
        Some(AuthResult::Success) => NextStep::LoggedIn,
        Some(AuthResult::Failure { remaining_methods, partial_success }) if !handle.is_closed() => {
            let over = partial_success || !remaining_methods.contains(&MethodKind::PublicKey);
            refusal.partial = partial_success;
            refusal.methods = Some(remaining_methods);
            if over { NextStep::Stop } else { NextStep::TryNext }
        }
        _ => {
            refusal.ended = true;
            NextStep::Stop
        }
    }
}

/// The keys to offer with their names, in the order of OpenSSH: configured keys in the agent, other keys of the agent, and
/// keys of files.
fn candidates(
    target: &Target,
    identities: Vec<Identity>,
    agent_keys: Vec<(PublicKey, String)>,
    refusal: &mut Refusal,
) -> Vec<(String, Candidate)> {
    let mut all = Vec::new();
    let mut agent_keys: Vec<Option<(PublicKey, String)>> = agent_keys.into_iter().map(Some).collect();
    let mut files = Vec::new();
    for identity in identities {
        let public = identity.public.as_ref();
        let same = |key: &Option<(PublicKey, String)>| {
            key.as_ref().map(|(key, _)| key.key_data()) == public.map(PublicKey::key_data)
        };
        let in_agent = public.and_then(|_| agent_keys.iter().position(same));
        let in_agent = in_agent.and_then(|index| agent_keys.get_mut(index)).and_then(Option::take);
        match in_agent {
            Some((key, _)) => offer_agent(key, format!("{} (agent)", identity.path.display()), &mut all, refusal),
            None => files.push(identity),
        }
    }
    if !target.identities_only {
        for (key, comment) in agent_keys.into_iter().flatten() {
            let name = if comment.is_empty() {
                key.fingerprint(HashAlg::Sha256).to_string()
            } else {
                comment.chars().take(100).collect()
            };
            offer_agent(key, format!("{name} (agent)"), &mut all, refusal);
        }
    }
    for identity in files {
        let path = identity.path.display();
        match identity.secret {
            Ok(key) => all.push((path.to_string(), Candidate::File(key))),
            Err(UnusableKey::Missing) => {}
            Err(UnusableKey::Encrypted) => refusal
                .not_offered
                .push(format!("{path} (encrypted, and not in the agent: ssh-add {})", quoted(&path.to_string()))),
            Err(UnusableKey::Hardware) => {
                refusal.unsupported = true;
                refusal.not_offered.push(format!("{path} (a FIDO key, which a person has to touch)"));
            }
            Err(UnusableKey::Other(why)) => refusal.not_offered.push(format!("{path} ({why})")),
        }
    }
    all
}

fn offer_agent(key: PublicKey, name: String, all: &mut Vec<(String, Candidate)>, refusal: &mut Refusal) {
    if is_hardware(&key.algorithm()) {
        refusal.unsupported = true;
        refusal.not_offered.push(format!("{name} (a FIDO key, which a person has to touch)"));
    } else {
        all.push((name, Candidate::Agent(key)));
    }
}

type AgentKeys = Vec<(PublicKey, String)>;

/// Connects to the agent, and lists its keys with their comments.
async fn connect_agent(
    handle: &Handle<ClientHandler>,
    socket: &Path,
) -> Result<(AgentClient<UnixStream>, AgentKeys), russh::keys::Error> {
    let mut agent = AgentClient::connect_uds(socket).await?;
    if let Some(binding) = handle.agent_session_binding() {
        // An agent without support for the binding refuses it. Only keys that are restricted to hosts need the binding.
        let _ = agent.bind_session(binding, false).await;
    }
    let identities = agent.request_identities().await?;
    let keys = identities.into_iter().filter_map(|identity| match identity {
        AgentIdentity::PublicKey { key, comment } => Some((key, comment)),
        // The agent also lists the certified key.
        AgentIdentity::Certificate { .. } => None,
    });
    Ok((agent, keys.collect()))
}

#[cfg(test)]
mod tests {
    use russh::keys::ssh_key::LineEnding;
    use russh::keys::ssh_key::private::{KeypairData, SkEd25519};
    use russh::keys::ssh_key::public;

    use super::*;
    use crate::FailureKind;

    /// The file of a FIDO key, as ssh-keygen writes it. The secret is in the hardware.
    fn hardware_key() -> PrivateKey {
        let point = public::Ed25519PublicKey([7; 32]);
        let public = public::SkEd25519::new(point, "ssh:");
        let keypair = SkEd25519::new(public, 1, vec![1, 2, 3]).unwrap();
        PrivateKey::new(KeypairData::SkEd25519(keypair), "").unwrap()
    }

    fn target() -> Target {
        Target { user: "alice".to_owned(), login: "gpu01".to_owned(), ..Target::default() }
    }

    #[test]
    fn a_fido_key_of_a_file_or_the_agent_is_not_offered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id_sk");
        let key = hardware_key();
        key.write_openssh_file(&path, LineEnding::LF).unwrap();
        let identity = Identity::read(path);
        assert!(matches!(identity.secret, Err(UnusableKey::Hardware)));
        for agent_keys in [Vec::new(), vec![(key.public_key().clone(), "mine".to_owned())]] {
            let mut refusal = Refusal::default();
            let identities = vec![Identity::read(identity.path.clone())];
            let offered = candidates(&target(), identities, agent_keys, &mut refusal);
            assert!(offered.is_empty());
            let failure = refusal.into_host_failure(&target(), || None);
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(failure.message.contains("a FIDO key"), "{failure}");
        }
    }

    #[test]
    fn an_error_about_a_key_contains_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("id");
        let secret = "c2VjcmV0IGtleSBtYXRlcmlhbA";
        let text = format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let mut refusal = Refusal::default();
        candidates(&target(), vec![Identity::read(path)], Vec::new(), &mut refusal);
        let failure = refusal.into_host_failure(&target(), || None);
        assert!(failure.message.contains("no private key that can be read"), "{failure}");
        assert!(!failure.message.contains("secret") && !failure.message.contains("c2Vj"), "{failure}");
    }
}
