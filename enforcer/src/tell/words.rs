//! Violations and what is done about them, in words.
//!
//! What users chose (names of environments and commands) is made harmless here, once, so that no log, terminal or
//! status can be broken by it.

use genv_core::text::{harmless, shortened};

use crate::config::Action;
use crate::plan::{ProcessTarget, Stage, StepKind, Subject, Target};

/// Characters that are shown of a name that somebody chose.
const SHOWN_CHARACTERS: usize = 60;

/// A name that somebody chose.
#[must_use]
pub fn name(text: &str) -> String {
    shortened(&harmless(text), SHOWN_CHARACTERS)
}

/// What breaks a rule, without its user and host: `environment e1 on device 0`.
#[must_use]
pub fn subject(subject: &Subject) -> String {
    match subject {
        Subject::Process { pid, .. } => format!("process {pid}"),
        Subject::Environment { eid, .. } => format!("environment {}", name(eid)),
        Subject::EnvironmentDevice { eid, index, .. } => {
            format!("environment {} on device {index}", name(eid))
        }
        Subject::User { username, .. } => format!("user {}", name(username)),
        Subject::UserDevice {
            username, index, ..
        } => format!("user {} on device {index}", name(username)),
    }
}

/// The word of a stage.
#[must_use]
pub const fn stage(stage: &Stage) -> &'static str {
    match stage {
        Stage::Pending { .. } => "pending",
        Stage::Warned { .. } => "warned",
        Stage::Due => "due",
        Stage::Acted { .. } => "acted",
        Stage::Held { .. } => "held",
    }
}

/// The host that a subject is on, unless all count together.
#[must_use]
pub fn host(subject: &Subject) -> Option<&str> {
    match subject {
        Subject::Process { hostname, .. }
        | Subject::Environment { hostname, .. }
        | Subject::EnvironmentDevice { hostname, .. }
        | Subject::UserDevice { hostname, .. } => Some(hostname),
        Subject::User { hostname, .. } => hostname.as_deref(),
    }
}

/// A process: `process 4711 (python3)`.
#[must_use]
pub fn process(target: &ProcessTarget) -> String {
    match &target.comm {
        Some(comm) => format!("process {} ({})", target.pid, name(comm)),
        None => format!("process {}", target.pid),
    }
}

/// What would be ended or taken: `device 0 of environment e1, with process 4711 (python3)`.
#[must_use]
pub fn target(target: &Target) -> String {
    match target {
        Target::Process(target) => process(target),
        Target::Attachment(target) => {
            let taken = format!("device {} of environment {}", target.gpu, name(&target.eid));
            match &target.processes[..] {
                [] => taken,
                processes => {
                    let processes: Vec<_> = processes.iter().map(process).collect();
                    format!("{taken}, with {}", processes.join(", "))
                }
            }
        }
    }
}

/// The word of an action, as in the configuration.
#[must_use]
pub const fn action(action: Action) -> &'static str {
    match action {
        Action::Report => "report",
        Action::Warn => "warn",
        Action::Detach => "detach",
        Action::Terminate => "terminate",
        Action::Kill => "kill",
    }
}

/// What a step does to what; nothing if it only says something.
#[must_use]
pub fn deed(step: &StepKind) -> Option<(&'static str, String)> {
    match step {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Detach(attachment) => {
            Some(("detach", target(&Target::Attachment(attachment.clone()))))
        }
        StepKind::Terminate(target) => Some(("terminate", process(target))),
        StepKind::Kill(target) => Some(("kill", process(target))),
    }
}
