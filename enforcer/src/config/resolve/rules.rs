//! From rules as they are written to rules as they are kept to.

use std::time::Duration;

use genv_core::yaml::{Located, Place};

use super::{Checked, Resolver};
use crate::config::format::{RuleEntry, Span};
use crate::config::{Action, Limits, Rule, Scope};
use crate::kinds::Quantity;

/// From SIGTERM to SIGKILL, unless the file says.
const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// The time that a kind looks at, unless the file has one.
const DEFAULT_OVER: Duration = Duration::from_secs(2 * 3600);

/// More rules than this were written by no person, and each costs time in every cycle.
const MOST_RULES: usize = 1000;

impl Resolver<'_> {
    pub(super) fn rules(&self, entries: &[Located<RuleEntry>], interval: Duration) -> Checked<Vec<Rule>> {
        if let Some(one_too_many) = entries.get(MOST_RULES) {
            let message = format!("these are more than {MOST_RULES} rules: no lab has as many");
            return self.refuse(one_too_many.referenced, message);
        }
        let mut rules: Vec<Rule> = Vec::new();
        for entry in entries {
            let rule = self.rule(&entry.value, interval)?;
            if rules.iter().any(|other| other.name == rule.name) {
                let place = entry.value.name.as_ref().map_or(entry.value.kind.referenced, |name| name.referenced);
                let message = format!("two rules are called {}: give each its own name", rule.name);
                return self.refuse(place, message);
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn rule(&self, entry: &RuleEntry, interval: Duration) -> Checked<Rule> {
        let kind = entry.kind.value;
        for (key, place) in entry.kind_keys() {
            if !kind.keys.contains(&key) {
                let message = format!("a rule of kind {} knows no {key}: leave it out", kind.word);
                return self.refuse(place, message);
            }
        }
        let name = self.rule_name(entry)?;
        let action = self.action(entry, &name)?;
        // Where the kind measures a time of its own, a default would lengthen that time.
        let default_for = self.defaults.for_duration.as_ref();
        let default_for = default_for.filter(|_| !kind.measures_time);
        let for_duration = entry.for_duration.as_ref().or(default_for);
        let for_duration = for_duration.map_or(kind.default_for(), |span| span.value.0);
        let warn = self.warn(entry, &name, action)?;
        // As long as a violation takes from its begin to its end.
        let whole = for_duration + warn.first().copied().unwrap_or_default();
        let remember = entry.remember.as_ref().map(|span| span.value.0);
        let undelivered = entry.undelivered.as_ref().map(|undelivered| undelivered.value);
        Ok(Rule {
            action,
            for_duration,
            warn,
            remember: remember.unwrap_or(whole),
            undelivered: undelivered.or(self.defaults.undelivered).unwrap_or_default(),
            grace: self.grace(entry, action)?,
            processes: entry.processes.as_ref().map(|processes| processes.value).unwrap_or_default(),
            selector: entry.selector.as_ref().map(|it| self.selector(it)).transpose()?.unwrap_or_default(),
            schedule: entry.when.as_ref().map(|when| self.schedule(when)).transpose()?,
            kind: (kind.read)(&KindReader { resolver: self, entry, interval })?,
            name,
        })
    }

    /// Names are typed by people (`waive --rule`) and are values of labels.
    fn rule_name(&self, entry: &RuleEntry) -> Checked<String> {
        let Some(name) = &entry.name else {
            return Ok(entry.kind.value.word.to_owned());
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.value.is_empty() || name.value.len() > 64 || !name.value.chars().all(plain) {
            let message = format!(
                "'{}' cannot be the name of a rule: take up to 64 letters, digits, hyphens, underscores and dots",
                name.value.escape_debug()
            );
            return self.refuse(name.referenced, message);
        }
        Ok(name.value.clone())
    }

    fn action(&self, entry: &RuleEntry, name: &str) -> Checked<Action> {
        let kind = entry.kind.value;
        let given = entry.action.as_ref().or(self.defaults.action.as_ref());
        let action = given.map(|action| action.value).unwrap_or_default();
        if let Some(why) = kind.cannot(action) {
            let (place, whose) = match &entry.action {
                Some(action) => (action.referenced, ""),
                None => (entry.kind.referenced, ", which defaults say,"),
            };
            let message = format!("action {}{whose} does not end what {name} forbids: {why}", action.word());
            return self.refuse(place, message);
        }
        Ok(action)
    }

    fn warn(&self, entry: &RuleEntry, name: &str, action: Action) -> Checked<Vec<Duration>> {
        let own = entry.warn.as_ref().map(|warn| &warn.value);
        let Some(spans) = own.or(self.defaults.warn.as_ref()) else {
            if action.acts() {
                let place = entry.action.as_ref().map_or(entry.kind.referenced, |action| action.referenced);
                let message = format!(
                    "rule {name} would {} without a word before: say how long before it warns, such as warn: [10m], \
                     or warn: [] if nobody is to be warned",
                    action.word()
                );
                return self.refuse(place, message);
            }
            return Ok(Vec::new());
        };
        let warn = self.warnings_before(spans)?;
        Ok(if action.acts() { warn } else { Vec::new() })
    }

    fn warnings_before(&self, spans: &[Located<Span>]) -> Checked<Vec<Duration>> {
        let mut all: Vec<Duration> = Vec::new();
        for span in spans {
            let before = span.value.0;
            if before.is_zero() {
                return self.refuse(span.referenced, "a warning 0s before the end warns of nothing: write 1m or more");
            }
            if all.contains(&before) {
                return self.refuse(span.referenced, "this warning is there twice: leave one out");
            }
            all.push(before);
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        Ok(all)
    }

    fn grace(&self, entry: &RuleEntry, action: Action) -> Checked<Duration> {
        let given = entry.grace.as_ref().or(self.defaults.grace.as_ref());
        let grace = given.map_or(DEFAULT_GRACE, |span| span.value.0);
        if let Some(given) = given
            && action == Action::Kill
            && grace < Duration::from_secs(1)
        {
            let message = "SIGKILL so soon leaves a program no time to save anything: write 1s or more";
            return self.refuse(given.referenced, message);
        }
        Ok(grace)
    }
}

/// The keys of one rule, as its kind reads them.
pub(crate) struct KindReader<'r> {
    resolver: &'r Resolver<'r>,
    pub(crate) entry: &'r RuleEntry,
    interval: Duration,
}

impl KindReader<'_> {
    pub(crate) fn refuse<T>(&self, place: Place, message: impl Into<String>) -> Checked<T> {
        self.resolver.refuse(place, message)
    }

    /// The limit, which the kind must have.
    pub(crate) fn limits(&self) -> Checked<Limits<u64>> {
        let kind = self.entry.kind.value;
        let quantity = kind.limit.unwrap_or(Quantity::Number("limit"));
        let Some(limit) = &self.entry.limit else {
            let (word, example) = (kind.word, quantity.example());
            let message = format!("a rule of kind {word} needs a limit: add one, such as limit: {example}");
            return self.refuse(self.entry.kind.referenced, message);
        };
        self.resolver.limits(quantity, limit, self.entry.overrides.as_ref())
    }

    /// Where the rule counts.
    pub(crate) fn scope(&self) -> Scope {
        self.entry.scope.as_ref().map(|scope| scope.value).unwrap_or_default()
    }

    /// The time that the kind looks at.
    pub(crate) fn over(&self) -> Checked<Duration> {
        let over = self.entry.over.as_ref().map_or(DEFAULT_OVER, |over| over.value.0);
        if let Some(place) = self.entry.over.as_ref().map(|over| over.referenced)
            && over < self.interval
        {
            let message =
                format!("a window shorter than the interval of {:?} is never whole: write a longer one", self.interval);
            return self.refuse(place, message);
        }
        Ok(over)
    }
}
