//! What breaks a rule, and what could be ended or taken for it.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::Same;
use crate::plan::Subject;
use crate::plan::facts::{AttachmentId, Facts, HostId, ProcessId, UserId};

/// Something that breaks a rule.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) subject: Subject,
    pub(crate) user: UserId,
    /// Absent where all hosts count together.
    pub(crate) host: Option<HostId>,
    pub(crate) fact: SharedFact,
    /// By how much the limit is exceeded, in what the units weigh.
    pub(crate) excess: u64,
    pub(crate) units: Vec<Unit>,
    /// Why it waits, if the kind itself says so.
    pub(crate) held: Option<String>,
}

impl Finding {
    /// Whether it would not be found without attachments that nothing shows to be their user's doing.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        let unconfirmed = self.units.iter().filter(|unit| unit.newest >= NEWEST);
        let weight = unconfirmed.fold(0_u64, |sum, unit| sum.saturating_add(unit.weight));
        weight >= self.excess
    }
}

/// The facts of a finding. Sentences are made of them only where people read them.
pub(crate) trait ViolationFact: Any + Same + fmt::Debug + Send + Sync {
    /// What was found, in one clause: `uses 3 devices`.
    fn found(&self) -> String;

    /// What is allowed and by whose limit: `2 for members of students`.
    fn allowed(&self) -> String;

    /// How to end it, in words that commands may follow: `detach 1 device`.
    fn advice(&self) -> Cow<'static, str>;

    /// Whether the commands that end the targets follow the advice.
    fn has_commands(&self) -> bool {
        true
    }
}

/// The facts of a finding, shared by its violation and the copies of the violation.
#[derive(Clone)]
pub(crate) struct SharedFact(Arc<dyn ViolationFact>);

impl SharedFact {
    pub(crate) fn new(fact: impl ViolationFact) -> Self {
        Self(Arc::new(fact))
    }
}

impl Deref for SharedFact {
    type Target = dyn ViolationFact;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for SharedFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for SharedFact {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&*other.0)
    }
}

/// What counts as one for a rule, and can be taken as one.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) weight: u64,
    /// When it began; the larger the newer, in whatever the kind compares.
    pub(crate) newest: f64,
    pub(crate) pieces: Vec<Piece>,
    /// Processes that must end for the unit to be gone.
    pub(crate) must_end: Vec<ProcessId>,
}

/// What can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Process(ProcessId),
    Attachment(AttachmentId),
}

/// When an attachment began that nothing shows to be its user's: it is taken before all others.
pub(super) const NEWEST: f64 = f64::INFINITY;

/// A user on a host, or over all.
pub(super) fn user_subject(facts: &Facts<'_>, user: UserId, host: Option<HostId>) -> Subject {
    Subject::User {
        username: facts.users[user].name.to_owned(),
        hostname: host.map(|host| facts.hosts[host].hostname.to_owned()),
    }
}
