//! The page at `/`: the violations of the last cycle and why, what comes next, and what the enforcer did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use genv_core::duration::format_span;
use genv_core::enforcement::{Enforcement, HeldViolation, Stance};
use genv_core::text::{harmless, short_moment, shortened};
use genv_web::metrics::{LazyText, TextSink};
use genv_web::{Foot, Live, Page, Request, Response};
use jiff::tz::TimeZone;
use maud::{Markup, html};

use crate::plan::words::{self, count, thousands};
use crate::status::{self, Fact, Sentences, Topic};
use crate::user_reports::{Actions, KEPT_SECONDS};

/// Violations on the page, in all and of one user; the rest is counted.
const MAX_VIOLATIONS: usize = 300;
const MAX_OF_USER: usize = 20;
/// Frozen violations, next steps and actions on the page.
const MAX_FROZEN: usize = 100;
const MAX_NEXT: usize = 20;
const MAX_DONE: usize = 50;
/// Facts with the same label.
const MAX_FACTS: usize = 5;
/// Characters of a text.
const MAX_CHARACTERS: usize = 500;
const MAX_SUMMARY: usize = 120;

/// The time for which a rendered page is kept: the page has times like `in 5m`.
const RENDERED_SECONDS: f64 = 1.0;

/// The findings of a cycle, and their page.
#[derive(Debug)]
pub(crate) struct Findings {
    status: Enforcement,
    actions: Arc<Actions>,
    /// The zone of all times on the page.
    zone: TimeZone,
    rendered: Mutex<Arc<Rendered>>,
}

/// The page as of one moment, in all encodings.
#[derive(Debug, Default)]
struct Rendered {
    at_seconds: f64,
    text: LazyText,
}

/// A violation or an action in a table.
struct Row<'a> {
    violation: &'a HeldViolation,
    summary: String,
    stage: &'a str,
    when: String,
    why: Vec<(&'static str, String)>,
}

impl Findings {
    pub(crate) fn new(status: Enforcement, actions: Arc<Actions>, zone: TimeZone) -> Self {
        Self { status, actions, zone, rendered: Mutex::default() }
    }

    /// The page. It is rendered on request, and at most once a second.
    pub(crate) fn response(&self, request: &Request<'_>, now_seconds: f64) -> Response {
        let rendered = {
            let mut last = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
            if !(0.0..RENDERED_SECONDS).contains(&(now_seconds - last.at_seconds)) {
                *last = Arc::new(Rendered { at_seconds: now_seconds, ..Rendered::default() });
            }
            Arc::clone(&last)
        };
        let encoding = request.encoding();
        let write = |out: TextSink<'_>| out(self.html(rendered.at_seconds).as_bytes());
        Response::html(encoding, rendered.text.encoded(encoding, write))
    }

    fn html(&self, now_seconds: f64) -> String {
        let status = &self.status;
        let live = Live {
            interval: Duration::try_from_secs_f64(status.interval_seconds).unwrap_or_default(),
            sequence: status.updated_timestamp_seconds.to_bits(),
            timestamp_seconds: Some(status.updated_timestamp_seconds),
        };
        let users: BTreeSet<_> = status.violations.iter().map(|it| &it.username).collect();
        let facts = html! {
            p { (status.mode) }
            @match status.not_known(now_seconds) {
                Some(_) if users.is_empty() => p { "violations are not known" },
                not_known => p {
                    (count(status.violations.len(), "violation")) " of " (count(users.len(), "user")) " found"
                    @if not_known.is_some() { ", not all are known" }
                },
            }
        };
        page(facts, self.main(now_seconds), live).html()
    }

    fn main(&self, now_seconds: f64) -> Markup {
        let status = &self.status;
        let facts = status::facts(status, now_seconds, &self.zone);
        let has = |topic| facts.iter().any(|it| it.topic == topic);
        html! {
            div.enforcer {
                @if has(Topic::Trouble) {
                    section.faults { h2 { "What is broken" } (listed(&facts, Topic::Trouble)) }
                }
                div.side {
                    section { h2 { "State" } (listed(&facts, Topic::State)) }
                    section { h2 { "What comes next" } (self.next(now_seconds)) }
                }
                div.rest {
                    section {
                        h2 { "Violations" }
                        @if let Some(conclusion) = status::conclusion(status, now_seconds) { p { (conclusion) } }
                        (self.violations(now_seconds))
                    }
                    section { h2 { "What it did in the last 7 days" } (self.done(now_seconds)) }
                    @if !status.frozen.is_empty() { (self.frozen(now_seconds)) }
                    @if has(Topic::Note) {
                        details data-key="notes" {
                            summary { "Not judged, left behind, disputed, unknown and waived" }
                            (listed(&facts, Topic::Note))
                        }
                    }
                }
            }
        }
    }

    /// The violations, those with the next steps first.
    fn violations(&self, now_seconds: f64) -> Markup {
        let (all, stance) = (&self.status.violations, self.status.stance());
        let mut urgent: Vec<_> = all.iter().map(|it| (urgency(it), it)).collect();
        urgent.sort_by(|((a, at), _), ((b, bt), _)| a.cmp(b).then(at.total_cmp(bt)));
        let mut of_user = BTreeMap::<&str, usize>::new();
        let shown = urgent.into_iter().map(|(_, it)| it).filter(|it| {
            let number = of_user.entry(&it.username).or_default();
            *number += 1;
            *number <= MAX_OF_USER
        });
        let shown = shown.take(MAX_VIOLATIONS);
        let rows: Vec<Row<'_>> = shown.map(|it| self.row(it, stance, now_seconds)).collect();
        let left_out = all.len() - rows.len();
        html! {
            @if !rows.is_empty() { (table(&rows)) }
            @if left_out > 0 {
                p { (thousands(left_out)) " more are not shown here: 'genv-enforcer status' shows them." }
            }
        }
    }

    fn row<'a>(&self, violation: &'a HeldViolation, stance: Stance, now_seconds: f64) -> Row<'a> {
        let Sentences { lines: mut why, .. } = status::sentences(violation, stance, now_seconds, &self.zone);
        why.push(("To comply", violation.remedy.clone()));
        if !violation.targets.is_empty() {
            why.push(("Targets", violation.targets.join("; ")));
        }
        if !violation.victim_uids.is_empty() {
            let uids: Vec<String> = violation.victim_uids.iter().map(|uid| format!("uid:{uid}")).collect();
            why.push(("Also of", uids.join(", ")));
        }
        let stage = violation.stage.as_str();
        let stage = match (stage, violation.action.as_str()) {
            ("acted", "report") => "reported",
            ("acted", "warn") => "warned of",
            ("acted", _) if stance == Stance::OnlyReports => "would have acted",
            _ => stage,
        };
        let when = match (violation.stage.as_str(), violation.at_seconds, &violation.why) {
            ("pending" | "warned" | "due", ..) if is_stopped(violation, stance) => "stopped by the breaker".to_owned(),
            ("held" | "due", _, Some(why)) => shortened(why, MAX_SUMMARY),
            ("due", ..) => "now".to_owned(),
            (_, Some(at), _) => self.when(at, now_seconds),
            _ => String::new(),
        };
        let subject = words::unless_named(&violation.subject, &violation.found);
        let subject = subject.map(|it| format!("{it}: ")).unwrap_or_default();
        Row { violation, summary: subject + &violation.found, stage, when, why }
    }

    /// The warnings and actions to come, by time.
    fn next(&self, now_seconds: f64) -> Markup {
        let stance = self.status.stance();
        let to_come = self.status.violations.iter().filter(|it| matches!(it.stage.as_str(), "pending" | "warned"));
        let to_come = to_come.filter(|it| !is_stopped(it, stance));
        let mut steps: Vec<_> = to_come.filter_map(|it| Some((it.at_seconds?, it))).collect();
        steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        html! {
            @if stance == Stance::Stopped { p { "The breaker is open: no warning and no action until 'genv-enforcer reset'." } }
            @else if steps.is_empty() { p { "No step has a time yet." } }
            @if !steps.is_empty() {
                ol {
                    @for (at, it) in steps.iter().take(MAX_NEXT) {
                        li data-key=(key(it)) {
                            span.when { (self.when(*at, now_seconds)) } " "
                            b { (words::name(&it.username)) } ", " (words::name(&it.rule))
                            (status::on_host(it.hostname.as_deref())) ": " (next_step(it, stance))
                        }
                    }
                }
            }
            @if steps.len() > MAX_NEXT { p { "and " (thousands(steps.len() - MAX_NEXT)) " more" } }
        }
    }

    /// The actions of the last days, the newest first.
    fn done(&self, now_seconds: f64) -> Markup {
        let recent = |it: &&HeldViolation| it.at_seconds.is_some_and(|at| now_seconds - at < KEPT_SECONDS);
        let recent: Vec<_> = self.actions.reports.iter().rev().filter(recent).collect();
        let rows = recent.iter().take(MAX_DONE).map(|it| Row {
            violation: it,
            summary: it.targets.join("; "),
            stage: "done",
            when: self.when(it.at_seconds.unwrap_or_default(), now_seconds),
            why: vec![
                ("Done", it.done(now_seconds, &self.zone)),
                ("Found", it.found.clone()),
                ("Allowed", it.allowed.clone()),
                ("Since", self.when(it.since_seconds, now_seconds)),
                ("To comply", it.remedy.clone()),
            ],
        });
        let rows: Vec<Row<'_>> = rows.collect();
        html! {
            @if self.status.stance() == Stance::OnlyReports {
                p { "In dry-run it takes no action: the stage 'would have acted' shows those that it would have taken." }
            }
            @match &self.actions.unread {
                Some(error) => p { "Earlier actions are not known: " (shown(&error.to_string())) "." },
                None if rows.is_empty() => p { "No action is recorded." },
                None => {}
            }
            @if !rows.is_empty() { (table(&rows)) }
            @if recent.len() > rows.len() {
                p { "and " (recent.len() - rows.len()) " more: 'genv-enforcer report' shows them." }
            }
        }
    }

    fn frozen(&self, now_seconds: f64) -> Markup {
        let frozen = &self.status.frozen;
        html! {
            details data-key="frozen" {
                summary { "Frozen: " (count(frozen.len(), "violation")) " with missing evidence" }
                @for it in frozen.iter().take(MAX_FROZEN) {
                    @let it = status::frozen_sentences(it, now_seconds, &self.zone);
                    p { (shown(&it.headline)) }
                    (lines(&it.lines))
                }
                @if frozen.len() > MAX_FROZEN { p { "and " (frozen.len() - MAX_FROZEN) " more" } }
            }
        }
    }

    /// `18:00 (in 5m)`, `Wed 18:00 (2d ago)`.
    fn when(&self, seconds: f64, now_seconds: f64) -> String {
        let (moment, span) =
            (short_moment(seconds, now_seconds, &self.zone), format_span((seconds - now_seconds).abs()));
        match seconds >= now_seconds {
            true => format!("{moment} (in {span})"),
            false => format!("{moment} ({span} ago)"),
        }
    }
}

/// The page until the first cycle has ended.
pub(crate) fn before_first_cycle(interval: Duration) -> Response {
    let main = html! { p { "No cycle has ended yet. The findings are shown after the first one." } };
    page(Markup::default(), main, Live { interval, sequence: 0, timestamp_seconds: None }).response()
}

static FOOT: LazyLock<Foot> = LazyLock::new(|| {
    Foot::new(
        "genv-enforcer applies the rules on the use of GPUs. 'genv why' shows users what concerns them.",
        &[
            ["/metrics", "Metrics", "what Prometheus scrapes"],
            ["/-/healthy", "Health", "200 while cycles go on"],
            ["/-/ready", "Readiness", "200 while the last cycle saw a host"],
        ],
    )
});

fn page(facts: Markup, main: Markup, live: Live) -> Page<'static> {
    Page { title: "Enforcer", facts, main, live: Some(live), foot: Some(&FOOT) }
}

/// How soon a step of a violation comes: the group, and the order in it. Reports come last.
fn urgency(violation: &HeldViolation) -> (u8, f64) {
    let at_seconds = violation.at_seconds.unwrap_or_default();
    match (violation.stage.as_str(), violation.action.as_str(), violation.kill_seconds) {
        ("due", ..) => (0, violation.since_seconds),
        ("acted", _, Some(kill_seconds)) => (0, kill_seconds),
        ("warned", ..) => (1, at_seconds),
        ("pending", ..) => (2, at_seconds),
        (_, "report", _) => (4, violation.since_seconds),
        _ => (3, violation.since_seconds),
    }
}

/// Whether the breaker stops the next step.
fn is_stopped(violation: &HeldViolation, stance: Stance) -> bool {
    stance == Stance::Stopped && violation.action != "report"
}

fn next_step(violation: &HeldViolation, stance: Stance) -> String {
    let verb = match (violation.stage.as_str(), violation.action.as_str()) {
        (_, action @ ("report" | "warn")) => action.to_owned(),
        ("pending", action) => format!("warn or {action}"),
        (_, action) => action.to_owned(),
    };
    match stance {
        Stance::OnlyReports if violation.action != "report" => format!("would {verb}"),
        _ => verb,
    }
}

fn table(rows: &[Row<'_>]) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { @for name in ["User", "Rule", "Host", "What and why", "Action", "Stage", "When"] { th scope="col" { (name) } } } }
                tbody {
                    @for Row { violation: it, summary, stage, when, why } in rows {
                        tr data-key=(row_key(it)) {
                            th.name scope="row" { (words::name(&it.username)) }
                            td.name { (words::name(&it.rule)) }
                            td.name { (it.hostname.as_deref().map_or("all".into(), words::name)) }
                            td { details { summary { (shortened(&harmless(summary), MAX_SUMMARY)) } (lines(why)) } }
                            td { (it.action) }
                            td { (coloured(stage)) }
                            td { (shown(when)) }
                        }
                    }
                }
            }
        }
    }
}

/// A stage in its colour, with a symbol for readers who do not see colours.
fn coloured(stage: &str) -> Markup {
    let (class, symbol) = match stage {
        "due" | "acted" => ("down", "✕ "),
        "pending" | "warned" => ("idle", "▲ "),
        _ => ("dim", ""),
    };
    html! { span class=(class) { @if !symbol.is_empty() { span aria-hidden="true" { (symbol) } } (stage) } }
}

/// What tells a violation from others, for the script that follows the page.
fn key(violation: &HeldViolation) -> String {
    let host = violation.hostname.as_deref().unwrap_or_default();
    shown(&[&violation.rule, &violation.username, host, &violation.subject].join(" "))
}

/// The key of a row: one violation can have several actions, also in one cycle.
fn row_key(violation: &HeldViolation) -> String {
    match violation.at_seconds {
        Some(at) if violation.stage == "acted" => {
            format!("{} {at} {}", key(violation), shown(&violation.targets.join("; ")))
        }
        _ => key(violation),
    }
}

fn lines(lines: &[(&str, String)]) -> Markup {
    html! { dl { @for (label, line) in lines { dt { (label) } dd { (shown(line)) } } } }
}

/// The facts of a topic by their labels.
fn listed(facts: &[Fact], topic: Topic) -> Markup {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for Fact { label, text, .. } in facts.iter().filter(|it| it.topic == topic) {
        match groups.last_mut() {
            Some((last, texts)) if label.is_empty() || *last == *label => texts.push(text),
            _ => groups.push((*label, vec![text.as_str()])),
        }
    }
    html! {
        dl {
            @for (label, texts) in &groups {
                dt { @if topic == Topic::Trouble { span.down aria-hidden="true" { "✕ " } } (label) }
                @for text in texts.iter().take(MAX_FACTS) { dd { (shown(text)) } }
                @if texts.len() > MAX_FACTS { dd { "and " (texts.len() - MAX_FACTS) " more" } }
            }
        }
    }
}

fn shown(text: &str) -> String {
    shortened(&harmless(text), MAX_CHARACTERS)
}

#[cfg(test)]
mod tests;
