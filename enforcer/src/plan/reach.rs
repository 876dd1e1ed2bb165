//! What can be taken to end a violation, and what nobody may touch.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::facts::{AttachmentFacts, AttachmentId, Facts, HostId, ProcessId};
use super::history::{AttachmentHistory, Past, ProcessHistory};
use super::left_behind::Contexts;
use super::relief::{Candidate, choose};
use super::{AttachmentTarget, Input, ProcessTarget, Target, hold};
use crate::config::{Action, DetachedProcesses, Rule};
use crate::kinds::{Piece, Unit};

/// What is within reach of a plan that is being made.
#[derive(Debug)]
pub(super) struct Reach<'j, 'a> {
    input: &'j Input<'a>,
    past: &'j Past<'j>,
    facts: &'j Facts<'a>,
    /// What the plan ends already.
    pub(super) ending: BTreeSet<ProcessId>,
    /// What the plan detaches already.
    pub(super) detaching: BTreeSet<AttachmentId>,
    /// The targets that were made of processes. Several violations may end the same process.
    process_targets: Vec<OnceCell<Arc<ProcessTarget>>>,
    /// The first target that was made of each attachment.
    attachment_targets: Vec<OnceCell<Arc<AttachmentTarget>>>,
}

impl<'j, 'a> Reach<'j, 'a> {
    pub(super) fn new(input: &'j Input<'a>, past: &'j Past<'j>, facts: &'j Facts<'a>) -> Self {
        Self {
            input,
            past,
            facts,
            ending: BTreeSet::new(),
            detaching: BTreeSet::new(),
            process_targets: vec![OnceCell::new(); facts.processes.len()],
            attachment_targets: vec![OnceCell::new(); facts.attachments.len()],
        }
    }

    /// What to take to end a violation; absent if nothing that may be taken would.
    pub(super) fn relief<'u>(&self, rule: &Rule, units: &'u [Unit], excess: u64) -> Option<Cow<'u, [Piece]>> {
        // Most violations consist of one unit.
        if let [unit] = units
            && excess > 0
        {
            let is_enough = unit.weight >= excess && self.is_possible(rule, unit);
            return is_enough.then_some(Cow::Borrowed(&unit.pieces[..]));
        }
        let possible: Vec<&Unit> = units.iter().filter(|unit| self.is_possible(rule, unit)).collect();
        let candidates: Vec<Candidate> = possible
            .iter()
            .map(|unit| Candidate {
                weight: unit.weight,
                newest: unit.newest,
                going: unit.pieces.iter().all(|piece| match piece {
                    Piece::Process(id) => self.is_going(*id),
                    Piece::Attachment(id) => {
                        let attachment = &self.facts.attachments[*id];
                        self.detaching.contains(id) || attachment.detached_seconds.is_some()
                    }
                }),
            })
            .collect();
        let chosen = choose(&candidates, excess)?;
        let pieces = chosen.into_iter().flat_map(|position| possible[position].pieces.iter().copied());
        Some(pieces.collect())
    }

    pub(super) fn is_possible(&self, rule: &Rule, unit: &Unit) -> bool {
        let ends = |id: &ProcessId| {
            unit.pieces.iter().any(|piece| match piece {
                Piece::Process(process) => process == id,
                Piece::Attachment(attachment) => {
                    let attachment = &self.facts.attachments[*attachment];
                    let mut ending = self.processes_that_end(rule, attachment, &unit.pieces);
                    ending.any(|it| it == *id)
                }
            })
        };
        let mut must_end = unit.must_end.iter();
        must_end.all(|id| self.may_end(*id) && ends(id))
            && unit.pieces.iter().all(|piece| match piece {
                Piece::Process(id) => self.may_end(*id),
                Piece::Attachment(id) => self.may_detach(&self.facts.attachments[*id]),
            })
    }

    fn may_end(&self, id: ProcessId) -> bool {
        let process = &self.facts.processes[id];
        let refused = self.process_history(id).is_some_and(|known| known.refused.is_some());
        process.within_reach && !refused && !self.is_left_alone(process.host)
    }

    fn may_detach(&self, attachment: &AttachmentFacts) -> bool {
        let facts = &self.facts.environments[attachment.environment];
        let refused = self.attachment_history(attachment).is_some_and(|known| known.refused.is_some());
        let is_roots = facts.environment.uid.is_none_or(|uid| uid == 0);
        (!is_roots || attachment.unconfirmed) && !facts.moved && !refused && !self.is_left_alone(attachment.host)
    }

    fn is_left_alone(&self, host: HostId) -> bool {
        hold::maintenance_until(self.input, self.facts.hosts[host].hostname).is_some()
    }

    /// Whether a process was told to end, or is by this plan.
    pub(super) fn is_going(&self, id: ProcessId) -> bool {
        let known = self.process_history(id);
        self.ending.contains(&id) || known.is_some_and(|known| known.terminated_seconds.is_some())
    }

    pub(super) fn process_history(&self, id: ProcessId) -> Option<&ProcessHistory> {
        let facts = &self.facts.processes[id];
        let host = self.past.host(facts.host)?;
        // Most hosts have none, and need no look at the process.
        if host.processes.is_empty() {
            return None;
        }
        host.process(facts.process.pid, facts.process.start_time_ticks?)
    }

    fn attachment_history(&self, attachment: &AttachmentFacts) -> Option<&AttachmentHistory> {
        let host = self.past.host(attachment.host)?;
        if host.attachments.is_empty() {
            return None;
        }
        let environment = self.facts.environments[attachment.environment].environment;
        host.attachment(&environment.eid, attachment.gpu, attachment.attached_seconds)
    }

    /// Processes that end when their environment loses the device, and all that is in `taken` with it. Those that are
    /// busy, or may be, on a device that the environment keeps are spared; by an attachment that another user may have
    /// made, none ends.
    pub(super) fn processes_that_end(
        &self,
        rule: &Rule,
        attachment: &AttachmentFacts,
        taken: &[Piece],
    ) -> impl Iterator<Item = ProcessId> {
        let keeps = rule.action <= Action::Detach && rule.processes == DetachedProcesses::Keep;
        let ends_any = !keeps && !attachment.unconfirmed;
        let contexts = Contexts::new(self.facts, self.past, self.input.now_seconds);
        let goes = move |id: &AttachmentId| self.detaching.contains(id) || taken.contains(&Piece::Attachment(*id));
        let all = self.facts.environments[attachment.environment].attachments.clone();
        let stays = move |other: &AttachmentFacts| {
            let mut going = all.clone().filter(goes);
            going.all(|id| self.facts.attachments[id].gpu != other.gpu) && other.detached_seconds.is_none()
        };
        let gpu = attachment.gpu;
        let uses = self.facts.uses_on(attachment.environment, gpu);
        let uses = uses.filter(move |used| ends_any && used.shows_use);
        uses.map(|used| used.process)
            .filter(move |&id| self.may_end(id))
            .filter(move |&id| contexts.works_on(id, gpu, rule.busy(), &stays).is_none())
    }

    /// What a piece is, if all that is in `taken` is taken with it.
    pub(super) fn target(&self, rule: &Rule, piece: Piece, taken: &[Piece]) -> Option<Target> {
        match piece {
            Piece::Process(id) => self.process_target(id).map(Target::Process),
            Piece::Attachment(id) => {
                let attachment = &self.facts.attachments[id];
                let ending = || self.processes_that_end(rule, attachment, taken);
                // Another rule, or other pieces taken with it, may end other processes.
                let fits = |made: &&Arc<AttachmentTarget>| {
                    let targets = ending().filter_map(|id| self.process_target(id));
                    targets.map(|target| Arc::as_ptr(&target)).eq(made.processes.iter().map(Arc::as_ptr))
                };
                let first = &self.attachment_targets[id];
                let target = first.get().filter(fits).cloned().unwrap_or_else(|| {
                    let target = Arc::new(self.attachment_target(attachment, ending()));
                    first.get_or_init(|| Arc::clone(&target));
                    target
                });
                Some(Target::Attachment(target))
            }
        }
    }

    pub(super) fn process_target(&self, id: ProcessId) -> Option<Arc<ProcessTarget>> {
        if let Some(made) = self.process_targets[id].get() {
            return Some(Arc::clone(made));
        }
        let facts = &self.facts.processes[id];
        let process = facts.process;
        let target = ProcessTarget {
            hostname: self.facts.hosts[facts.host].hostname.to_owned(),
            pid: process.pid,
            start_time_ticks: process.start_time_ticks?,
            uid: process.uid?,
            username: process.username.clone()?,
            comm: process.comm.clone(),
            eid: process.attribution.eid().map(ToOwned::to_owned),
            container_id: process.container_id.clone(),
        };
        Some(Arc::clone(self.process_targets[id].get_or_init(|| Arc::new(target))))
    }

    pub(super) fn attachment_target(
        &self,
        attachment: &AttachmentFacts,
        processes: impl Iterator<Item = ProcessId>,
    ) -> AttachmentTarget {
        let environment = self.facts.environments[attachment.environment].environment;
        let processes = processes.filter_map(|id| self.process_target(id));
        let host = &self.facts.hosts[attachment.host];
        AttachmentTarget {
            hostname: host.hostname.to_owned(),
            eid: environment.eid.clone(),
            username: environment.username.clone(),
            gpu: attachment.gpu,
            uuid: host.uuid_of(attachment.gpu).map(str::to_owned),
            attached_seconds: attachment.attached_seconds,
            processes: processes.collect(),
            unconfirmed: attachment.unconfirmed,
        }
    }

    /// Why nothing may be done about any of these, in one clause.
    pub(super) fn out_of_reach(&self, units: &[Unit]) -> String {
        let mut pieces = units.iter().flat_map(|unit| &unit.pieces);
        let refused = pieces.find_map(|piece| match piece {
            Piece::Process(id) => {
                let reason = self.process_history(*id)?.refused.as_ref()?;
                Some((self.facts.processes[*id].process.pid.to_string(), reason))
            }
            Piece::Attachment(id) => {
                let attachment = &self.facts.attachments[*id];
                let reason = self.attachment_history(attachment)?.refused.as_ref()?;
                Some((format!("device {}", attachment.gpu), reason))
            }
        });
        let nothing = "nothing that may be ended would end it";
        match refused {
            Some((what, reason)) => format!("{nothing}: {what}: {reason}"),
            None => nothing.to_owned(),
        }
    }
}
