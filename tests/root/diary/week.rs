//! The week: the machine, its daemons, its users, and the scenes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{self, Enforcer};
use genv_tests::exporter::{self, Exporter};
use genv_tests::patience::until;
use rustix::mount::mount_bind;

use crate::diary::person::Person;
use crate::diary::sees;
use crate::diary::stage::{FIRST, Stage, USERS};

/// The number of scenes.
const SCENES: usize = 40;

/// The rules of the first days, which only report.
pub(crate) const REPORTS: &str = "mode: dry-run\nrules:\n- {kind: non-env-processes}\n- {kind: env-devices}\n";

/// Everybody and everything of the week.
#[derive(Debug)]
pub(crate) struct Week {
    pub(crate) ann: Person,
    pub(crate) ben: Person,
    pub(crate) cara: Person,
    pub(crate) enforcer: Enforcer,
    pub(crate) exporter: Exporter,
    pub(crate) stage: Stage,
    scenes: usize,
}

impl Week {
    pub(crate) fn new() -> Result<Self> {
        let stage = Stage::new()?;
        let mut exporter = exporter::Setup::new()?.flag("--gpu.source=nvml");
        let mut enforcer =
            enforcer::Setup::new("version: 1\n", &rules(REPORTS))?.interval("200ms").flag("--gpu.source=nvml");
        for (name, value) in stage.variables() {
            exporter = exporter.env(name, &value);
            enforcer = enforcer.env(name, &value);
        }
        fs::set_permissions(enforcer.folder(), fs::Permissions::from_mode(0o755))?;
        // Users find the enforcer's folder at its usual path.
        mount_bind(enforcer.state_directory(), "/var/lib/genv-enforcer")?;
        let person = |index: u32, (name, shell)| Person::new(name, FIRST + index, shell);
        let [ann, ben, cara] = USERS;
        Ok(Self {
            ann: person(0, ann),
            ben: person(1, ben),
            cara: person(2, cara),
            enforcer: enforcer.start()?,
            exporter: exporter.start()?,
            stage,
            scenes: 0,
        })
    }

    /// One scene: what happens, and then what every user sees. `sees` has the line of the devices, which is the same for
    /// all, and the line of the shells.
    pub(crate) fn scene(
        &mut self,
        number: usize,
        title: &str,
        sees: &str,
        happens: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.scenes += 1;
        ensure!(self.scenes == number, "scene {number} has the wrong place");
        for person in [&mut self.ann, &mut self.ben, &mut self.cara] {
            person.turns_page();
        }
        let played = happens(self).and_then(|()| self.all_see(sees));
        played.with_context(|| format!("scene {number}. {title}"))
    }

    /// The admin's rules from now on.
    pub(crate) fn rules(&self, text: &str) -> Result<()> {
        self.enforcer.setup().rewrite_config(&rules(text))
    }

    /// All scenes were played.
    pub(crate) fn is_over(&self) -> Result<()> {
        ensure!(self.scenes == SCENES, "{} scenes", self.scenes);
        Ok(())
    }

    fn all_see(&mut self, expected: &str) -> Result<()> {
        let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let [devices, shells] = expected[..] else {
            anyhow::bail!("a line of devices and a line of shells are expected");
        };
        let mut seen = Vec::new();
        let all = until("every user sees this", || {
            let Self { ann, ben, cara, stage, .. } = self;
            let people = [ann, ben, cara];
            seen.clear();
            for person in &people {
                seen.push(format!("{}: {}", person.name, sees::devices(stage, person)?));
            }
            let expected = people.each_ref().map(|person| format!("{}: {devices}", person.name));
            let mut states = Vec::new();
            for person in people {
                states.push(person.state()?);
            }
            seen.push(states.join(" | "));
            Ok(seen[..3] == expected && seen[3] == shells)
        });
        all.with_context(|| format!("expected:\n{devices}\n{shells}\nseen:\n{}", seen.join("\n")))
    }
}

/// A configuration that acts slowly enough to be read and fast enough to be tested.
fn rules(text: &str) -> String {
    format!("version: 1\nbreaker: {{share_of_users: 1}}\n{text}")
}
