//! What administrators tell the enforcer in the time of a test, as with `pause` and `waive`.

use std::time::Duration;

use genv_core::yaml::{self, Located};
use genv_simulator::Engine;

use super::Reader;
use super::file::TestEntry;
use crate::config::format::Span;
use crate::config::{Config, Waiver};

/// What `Control` is in the daemon, over the time of a test.
#[derive(Debug, Default)]
pub(super) struct TestControl {
    pauses: Vec<Window>,
    waivers: Vec<(Window, Waiver)>,
}

/// A time of a test, which ends.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: Duration,
    until: Duration,
}

impl Window {
    fn holds(self, at: Duration) -> bool {
        self.from <= at && at < self.until
    }
}

impl TestControl {
    /// Unix time until which everything waits, as far as was told by then.
    pub(super) fn paused_until_seconds(&self, epoch: Duration, at: Duration) -> Option<f64> {
        let pauses = self.pauses.iter().filter(|window| window.holds(at));
        let until = pauses.map(|window| window.until).max()?;
        Some((epoch + until).as_secs_f64())
    }

    /// The exemptions that were given by then and hold.
    pub(super) fn waivers(&self, epoch: Duration, at: Duration) -> Vec<Waiver> {
        let given = self.waivers.iter().filter(|(window, _)| window.holds(at));
        let waivers = given
            .map(|(window, waiver)| Waiver { until_seconds: (epoch + window.until).as_secs_f64(), ..waiver.clone() });
        waivers.collect()
    }
}

impl Reader<'_> {
    pub(super) fn control(
        &self,
        entry: &TestEntry,
        config: &Config,
        engine: &Engine,
    ) -> Result<TestControl, yaml::Error> {
        let mut control = TestControl::default();
        for pause in &entry.pauses {
            let window = self.window(pause.from.as_ref(), &pause.until)?;
            control.pauses.push(window);
        }
        for waiver in &entry.waivers {
            let user = &waiver.user.value.0;
            self.known_user(user, waiver.user.referenced, engine)?;
            let rules = &waiver.rules;
            if rules.value.is_empty() {
                return self.refuse(rules.referenced, "from which rules? Name them");
            }
            for rule in &rules.value {
                self.known_rule(rule, config)?;
            }
            let window = self.window(waiver.from.as_ref(), &waiver.until)?;
            let reason = waiver.reason.as_ref();
            let waiver = Waiver {
                users: [user.clone()].into(),
                rules: rules.value.iter().map(|rule| rule.value.clone()).collect(),
                until_seconds: 0.0,
                reason: reason.map(|text| text.0.clone()).unwrap_or_default(),
            };
            control.waivers.push((window, waiver));
        }
        Ok(control)
    }

    fn window(&self, from: Option<&Located<Span>>, until: &Located<Span>) -> Result<Window, yaml::Error> {
        let from = from.map_or(Duration::ZERO, |from| from.value.0);
        if until.value.0 <= from {
            return self.refuse(until.referenced, "it ends before it begins: until must be after from");
        }
        Ok(Window { from, until: until.value.0 })
    }
}
