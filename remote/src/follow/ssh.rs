//! Hosts as SSH reaches them.

use crate::conversation::{Conversation, ServeOptions};
use crate::follow::polled::Polled;
use crate::follow::{Dial, Link};
use crate::hosts::HostEntry;
use crate::protocol::{Answers, Reply, Request};
use crate::resolve::resolve;
use crate::session::{LineChannel, Session, Timeouts};
use crate::{FailureKind, HostFailure};

/// Connects as `ssh` would.
#[derive(Clone, Debug)]
pub struct SshDial {
    /// Who logs in where neither the list nor ssh's configuration tells.
    pub login: Option<String>,
    /// How long its steps may take.
    pub timeouts: Timeouts,
    /// How hosts are asked.
    pub serve: ServeOptions,
}

/// A session with a host, and what answers there.
#[derive(Debug)]
pub struct SshLink(Way);

#[derive(Debug)]
enum Way {
    Genv {
        conversation: Conversation<LineChannel>,
        /// With it the channel ends.
        _session: Session,
        may_enforce: bool,
    },
    Polled(Polled<Session>),
}

impl Dial for SshDial {
    type Link = SshLink;

    async fn dial(&self, host: &HostEntry) -> Result<SshLink, HostFailure> {
        let target = resolve(host, self.login.as_deref()).await?;
        let session = Session::connect(&target, &self.timeouts).await?;
        let (conversation, hello) = Conversation::begin(&session, &self.serve).await?;
        Ok(SshLink(match hello.answers_with {
            Answers::Genv => Way::Genv { conversation, _session: session, may_enforce: hello.may_enforce },
            answers @ (Answers::Genv1 | Answers::NvidiaSmi) => {
                Way::Polled(Polled::new(session, &host.name, answers, self.serve.sudo, self.timeouts.answer))
            }
            Answers::Nothing => {
                return Err(HostFailure::new(
                    FailureKind::Command,
                    "there is neither genv nor nvidia-smi on the PATH of its user, so that nothing can be asked: \
                     install genv there, or take it off the list",
                ));
            }
        }))
    }
}

impl Link for SshLink {
    fn answers_with(&self) -> Answers {
        match &self.0 {
            Way::Genv { .. } => Answers::Genv,
            Way::Polled(polled) => polled.answers,
        }
    }

    async fn next(&mut self) -> Result<Reply, HostFailure> {
        match &mut self.0 {
            Way::Genv { conversation, .. } => conversation.next_reply().await,
            Way::Polled(polled) => polled.next().await,
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), HostFailure> {
        match &mut self.0 {
            Way::Genv { may_enforce: false, .. } if matches!(request, Request::Enforce { .. }) => {
                Err(HostFailure::new(
                    FailureKind::Unsupported,
                    "genv there only sends snapshots: let 'genv remote-serve --enforce' run for this key, or as root by sudo",
                ))
            }
            Way::Genv { conversation, .. } => conversation.request(request).await,
            Way::Polled(polled) => polled.send(request),
        }
    }
}
