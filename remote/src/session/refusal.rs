//! What is said to who is not let in.

use russh::{MethodKind, MethodSet};

use crate::resolve::Target;
use crate::{FailureKind, HostFailure};

/// Why nobody was let in.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// Keys that the host saw.
    pub(super) offered: Vec<String>,
    /// Keys that it did not see, and why.
    pub(super) withheld: Vec<String>,
    /// Ways in that it has.
    pub(super) methods: Option<MethodSet>,
    /// Whether a key was right, and more is wanted.
    pub(super) partial: bool,
    /// Whether the connection ended.
    pub(super) ended: bool,
    /// Whether there are keys that only OpenSSH's own client can use.
    pub(super) unsupported: bool,
}

impl Refusal {
    /// What to say of it; `why_ended` tells why the connection ended.
    pub(super) fn into_host_failure(self, target: &Target, why_ended: impl FnOnce() -> Option<String>) -> HostFailure {
        let user = &target.user;
        let withheld = if self.withheld.is_empty() {
            String::new()
        } else {
            format!("; not offered: {}", self.withheld.join(", "))
        };
        let offered = self.offered.join(", ");
        let methods = self.methods.as_deref().map(|methods| {
            let names: Vec<&str> = methods.iter().map(<&str>::from).collect();
            names.join(", ")
        });
        let keys_are_taken = self.methods.as_ref().is_none_or(|methods| methods.contains(&MethodKind::PublicKey));
        let copy = format!("Let it accept a key with: ssh-copy-id {}", target.login);
        let (kind, why) = if self.ended {
            let why = why_ended().unwrap_or_else(|| "it closed the connection".to_owned());
            let many = if self.offered.len() > 1 {
                "Name its key with IdentityFile and 'IdentitiesOnly yes' in ~/.ssh/config: a host counts each key that \
                 it is offered"
            } else {
                "Look at the log of its sshd"
            };
            let kind = if self.offered.len() > 1 { FailureKind::Authentication } else { FailureKind::Disconnected };
            (kind, format!("{why}, having seen {} of the keys here ({offered}){withheld}. {many}", self.offered.len()))
        } else if self.partial {
            let methods = methods.unwrap_or_default();
            (
                FailureKind::Unsupported,
                format!(
                    "it accepts the key, and wants more that nobody is here to give ({methods}). Let it accept the key \
                 alone (AuthenticationMethods publickey)"
                ),
            )
        } else if !keys_are_taken {
            let methods = methods.unwrap_or_default();
            (
                FailureKind::Authentication,
                format!(
                    "it takes no keys, only {methods}. Set 'PubkeyAuthentication yes' in its sshd_config, and then: \
                 ssh-copy-id {}",
                    target.login
                ),
            )
        } else if self.offered.is_empty() && self.unsupported {
            (FailureKind::Unsupported, format!("there is no key that can be used unattended{withheld}. {copy}"))
        } else if self.offered.is_empty() {
            (
                FailureKind::Authentication,
                format!(
                    "there is no key to offer here{withheld}. Make one with ssh-keygen or load one with ssh-add. {copy}"
                ),
            )
        } else {
            (FailureKind::Authentication, format!("it accepts none of these keys: {offered}{withheld}. {copy}"))
        };
        HostFailure::new(kind, format!("cannot log in as {user}: {why}"))
    }
}
