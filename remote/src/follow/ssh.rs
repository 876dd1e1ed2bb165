//! Connections to hosts over SSH.

use crate::conversation::{Conversation, ServeOptions};
use crate::follow::polled::PolledLink;
use crate::follow::{Dial, Link};
use crate::hosts::HostEntry;
use crate::protocol::{HostProgram, Reply, Request};
use crate::resolve::resolve;
use crate::session::{LineChannel, LoginAttempts, Session, Timeouts};
use crate::{FailureKind, HostFailure};

/// Connects by ssh's configuration.
#[derive(Clone, Debug)]
pub struct SshDial {
    /// The user to log in as, if neither the list nor ssh's configuration names one.
    pub login: Option<String>,
    /// Time limits of the steps.
    pub timeouts: Timeouts,
    /// How to start genv on the hosts.
    pub serve: ServeOptions,
    /// The last attempts, which all hosts share.
    pub attempts: LoginAttempts,
}

/// A session with a host.
#[derive(Debug)]
pub struct SshLink(LinkKind);

#[derive(Debug)]
enum LinkKind {
    Genv {
        conversation: Conversation<LineChannel>,
        /// Keeps the channel open.
        _session: Session,
        may_enforce: bool,
    },
    Polled(PolledLink<Session>),
}

impl Dial for SshDial {
    type Link = SshLink;

    async fn dial(&self, host: &HostEntry) -> Result<SshLink, HostFailure> {
        let target = resolve(host, self.login.as_deref()).await?;
        let session = Session::connect_after(&self.attempts, &target, &self.timeouts).await?;
        let (conversation, hello) = Conversation::begin(&session, &self.serve).await?;
        Ok(SshLink(match hello.answers_with {
            HostProgram::Genv => LinkKind::Genv { conversation, _session: session, may_enforce: hello.may_enforce },
            program @ (HostProgram::Genv1 | HostProgram::NvidiaSmi) => {
                LinkKind::Polled(PolledLink::new(session, &host.name, program, self.serve.sudo, self.timeouts.answer))
            }
            HostProgram::Nothing => {
                return Err(HostFailure::new(
                    FailureKind::Command,
                    "there is neither genv nor nvidia-smi on the PATH of its user: install genv there, or take the host \
                                         off the list",
                ));
            }
        }))
    }
}

impl Link for SshLink {
    fn program(&self) -> HostProgram {
        match &self.0 {
            LinkKind::Genv { .. } => HostProgram::Genv,
            LinkKind::Polled(polled) => polled.program,
        }
    }

    async fn next(&mut self) -> Result<Reply, HostFailure> {
        match &mut self.0 {
            LinkKind::Genv { conversation, .. } => conversation.next_reply().await,
            LinkKind::Polled(polled) => polled.next().await,
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
        match &mut self.0 {
            LinkKind::Genv { may_enforce: false, .. } if matches!(request, Request::Enforce { .. }) => {
                Err(HostFailure::new(
                    FailureKind::Unsupported,
                    "genv there only sends snapshots: let 'genv remote-serve --enforce' run for this key, or as root by sudo",
                ))
            }
            LinkKind::Genv { conversation, .. } => conversation.request(request).await,
            LinkKind::Polled(polled) => polled.send(request),
        }
    }
}
