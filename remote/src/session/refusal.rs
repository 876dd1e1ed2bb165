//! Errors of refused logins.

use russh::{MethodKind, MethodSet};

use crate::resolve::Target;
use crate::{FailureKind, HostFailure};

/// The facts about a refused login.
#[derive(Debug, Default)]
pub(super) struct Refusal {
    /// Keys that were offered to the host.
    pub(super) offered: Vec<String>,
    /// Keys that were not offered, with the reasons.
    pub(super) not_offered: Vec<String>,
    /// The authentication methods of the host.
    pub(super) methods: Option<MethodSet>,
    /// Whether the host accepted a key and requires another method too.
    pub(super) partial: bool,
    /// Whether the connection ended.
    pub(super) ended: bool,
    /// Whether only OpenSSH's own client can use one of the keys.
    pub(super) unsupported: bool,
}

impl Refusal {
    /// The error for the user. `why_ended` gives the reason for the end of the connection.
    pub(super) fn into_host_failure(self, target: &Target, why_ended: impl FnOnce() -> Option<String>) -> HostFailure {
        let user = &target.user;
        let not_offered = if self.not_offered.is_empty() {
            String::new()
        } else {
            format!("; not offered: {}", self.not_offered.join(", "))
        };
        let offered = self.offered.join(", ");
        let methods = self.methods.as_deref().map(|methods| {
            let names: Vec<&str> = methods.iter().map(<&str>::from).collect();
            names.join(", ")
        });
        let accepts_keys = self.methods.as_ref().is_none_or(|methods| methods.contains(&MethodKind::PublicKey));
        let copy = format!("Let it accept a key with: ssh-copy-id {}", target.login);
        let (kind, why) = if self.ended {
            let why = why_ended().unwrap_or_else(|| "it closed the connection".to_owned());
            let remedy = if self.offered.len() > 1 {
                "Name its key with IdentityFile and 'IdentitiesOnly yes' in ~/.ssh/config: a host counts each offered \
                                 key"
            } else {
                "See the log of its sshd"
            };
            let kind = if self.offered.len() > 1 { FailureKind::Authentication } else { FailureKind::Disconnected };
            (kind, format!("{why} after {} of the keys here ({offered}){not_offered}. {remedy}", self.offered.len()))
        } else if self.partial {
            let methods = methods.unwrap_or_default();
            (
                FailureKind::Unsupported,
                format!(
                    "it accepts the key, and also requires a method that needs a person ({methods}). Let it accept the \
                                     key alone (AuthenticationMethods publickey)"
                ),
            )
        } else if !accepts_keys {
            let methods = methods.unwrap_or_default();
            (
                FailureKind::Authentication,
                format!(
                    "it accepts no keys, only {methods}. Set 'PubkeyAuthentication yes' in its sshd_config, and then: \
                 ssh-copy-id {}",
                    target.login
                ),
            )
        } else if self.offered.is_empty() && self.unsupported {
            (FailureKind::Unsupported, format!("there is no key that can be used unattended{not_offered}. {copy}"))
        } else if self.offered.is_empty() {
            (
                FailureKind::Authentication,
                format!(
                    "there is no key to offer here{not_offered}. Make one with ssh-keygen or load one with ssh-add. {copy}"
                ),
            )
        } else {
            (FailureKind::Authentication, format!("it accepts none of these keys: {offered}{not_offered}. {copy}"))
        };
        HostFailure::new(kind, format!("cannot log in as {user}: {why}"))
    }
}
