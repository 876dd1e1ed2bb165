//! Small parts of all pages: names, amounts, bars, links, and what is broken.

use std::collections::BTreeMap;

use genv_core::duration::format_span;
use genv_core::lab::{Activity, Gpu, GpuState, Trouble, TroubleKind, is_known};
use genv_core::model::HostSnapshot;
use genv_core::text::{harmless, shortened};
use maud::{Markup, html};

/// Characters of a name that a page shows; the rest of the page must stay usable beside a longer one.
const LONGEST_NAME: usize = 200;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Less is shown in MiB.
const MUCH_MEMORY: u64 = 1 << 30;
const JOULES_PER_WATT_HOUR: f64 = 3600.0;

/// A text of a user or a host: `maud` escapes it for HTML, and this function what is left.
pub(super) fn shown(text: &str) -> String {
    harmless(&shortened(text, LONGEST_NAME))
}

pub(super) fn host_link(hostname: &str) -> Markup {
    html! { a href={ "./?host=" (encoded(hostname)) } { (shown(hostname)) } }
}

pub(super) fn user_link(username: &str) -> Markup {
    html! { a href={ "./?user=" (encoded(username)) } { (shown(username)) } }
}

/// A link to a user, or that the user is not known.
pub(super) fn user(username: Option<&str>) -> Markup {
    html! { @match username { Some(username) => (user_link(username)), None => "? user not known" } }
}

/// A value of a query parameter, percent-encoded.
fn encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// How a GPU looks to people who search for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    Free,
    Held,
    Idle,
    /// Held, and the use is not known.
    UseUnknown,
    Used,
    Unknown,
    Unsplit,
    Down,
}

impl Look {
    pub(super) fn of(gpu: &Gpu<'_>) -> Self {
        match (gpu.state, gpu.activity()) {
            (GpuState::Held, Some(Activity::Unknown)) => Self::UseUnknown,
            (GpuState::Held, Some(activity)) if activity.is_idle() => Self::Idle,
            (GpuState::Held, _) => Self::Held,
            (GpuState::Free, _) => Self::Free,
            (GpuState::Used, _) => Self::Used,
            (GpuState::Unknown, _) => Self::Unknown,
            (GpuState::Unsplit, _) => Self::Unsplit,
            (GpuState::Down, _) => Self::Down,
        }
    }

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Free => GpuState::Free.word(),
            Self::Held => GpuState::Held.word(),
            Self::Idle => "held, idle",
            Self::UseUnknown => "held, use not known",
            Self::Used => GpuState::Used.word(),
            Self::Unknown => GpuState::Unknown.word(),
            Self::Unsplit => GpuState::Unsplit.word(),
            Self::Down => GpuState::Down.word(),
        }
    }

    /// The class of the style sheet, which gives the colour.
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held | Self::UseUnknown => "held",
            Self::Idle => "idle",
            Self::Used => "used",
            Self::Unknown => "unknown",
            Self::Unsplit | Self::Down => "down",
        }
    }

    /// For readers who do not see colours.
    pub(super) const fn symbol(self) -> &'static str {
        match self {
            Self::Free => "○",
            Self::Held => "●",
            Self::Idle => "◐",
            Self::UseUnknown => "◉",
            Self::Used => "▲",
            Self::Unknown => "?",
            Self::Unsplit => "◫",
            Self::Down => "✕",
        }
    }
}

/// The GPUs of a host as symbols, and the number of each look in words.
pub(super) fn strip(host: &HostSnapshot, gpus: &[Gpu<'_>]) -> Markup {
    let looks: Vec<Look> = gpus.iter().map(Look::of).collect();
    html! {
        span.strip aria-hidden="true" {
            @for run in looks.chunk_by(|one, other| one == other) {
                span class=(run[0].class()) { (run[0].symbol().repeat(run.len())) }
            }
        }
        " "
        @if looks.is_empty() && !is_known(host, &["gpu"]) { span.unknown { "? GPUs not known" } } @else { (counts(&looks)) }
    }
}

fn counts(looks: &[Look]) -> Markup {
    let mut counts = BTreeMap::new();
    for look in looks {
        *counts.entry(*look).or_insert(0) += 1_usize;
    }
    html! {
        span.dim {
            @for (position, (look, count)) in counts.iter().enumerate() {
                @if position > 0 { " · " }
                (count) " " (look.words())
            }
            @if looks.is_empty() { "no GPU" }
        }
    }
}

/// A share of 1 as a bar. Its value must be beside it.
pub(super) fn bar(ratio: Option<f64>) -> Markup {
    let width = ratio.map_or(0.0, |ratio| (ratio * 100.0).clamp(0.0, 100.0));
    html! {
        svg.bar viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true" {
            rect width=(format_args!("{width:.0}")) height="1" {}
        }
    }
}

/// A share of 1 in percent.
pub(super) fn percent(ratio: Option<f64>) -> String {
    amount(ratio.map(|ratio| ratio * 100.0), "%")
}

/// A whole number with its unit, or `?`.
pub(super) fn amount(value: Option<f64>, unit: &str) -> String {
    match value.filter(|it| it.is_finite()) {
        Some(value) if value.abs() < 1e6 => format!("{value:.0} {unit}"),
        Some(value) => format!("{value:.1e} {unit}"),
        None => format!("? {unit}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
pub(super) fn gib(bytes: u64) -> String {
    let gib = bytes as f64 / GIB;
    if gib < 9.95 && bytes > 0 { format!("{gib:.1}") } else { format!("{gib:.0}") }
}

/// An amount of memory with its unit, or `?`.
pub(super) fn memory(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes @ 1..MUCH_MEMORY) => format!("{} MiB", bytes.div_ceil(1 << 20)),
        Some(bytes) => format!("{} GiB", gib(bytes)),
        None => "? GiB".to_owned(),
    }
}

/// Hours of a GPU, or `?`.
pub(super) fn hours(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "? h".to_owned(), |seconds| format!("{:.1} h", seconds / 3600.0))
}

pub(super) fn energy(joules: Option<f64>) -> String {
    let watt_hours = joules.map(|joules| joules / JOULES_PER_WATT_HOUR);
    match watt_hours {
        Some(it) if it >= 1000.0 => format!("{:.1} kWh", it / 1000.0),
        it => amount(it, "Wh"),
    }
}

/// The time from a moment to now, or `?`.
pub(super) fn since(now_seconds: f64, moment_seconds: Option<f64>) -> String {
    moment_seconds.map_or_else(|| "?".to_owned(), |moment| format_span(now_seconds - moment))
}

/// The first items of a list, and the others behind a line that opens them.
pub(super) fn folded<T>(items: &[T], first: usize, list: impl Fn(&[T]) -> Markup) -> Markup {
    let (first, others) = items.split_at(first.min(items.len()));
    html! {
        (list(first))
        @if !others.is_empty() {
            details { summary { (others.len()) " more" } (list(others)) }
        }
    }
}

/// What is broken, each with its host, its GPUs and its runbook. At most `first` of it are shown open.
pub(super) fn trouble_list(troubles: &[Trouble<'_>], first: usize) -> Markup {
    let same = |one: &Trouble<'_>, other: &Trouble<'_>| {
        (one.hostname, &one.words, one.device.is_some()) == (other.hostname, &other.words, other.device.is_some())
    };
    let faults: Vec<_> = troubles.chunk_by(same).collect();
    folded(&faults, first, fault_list)
}

/// Faults, each of one or several GPUs of a host.
fn fault_list(faults: &[&[Trouble<'_>]]) -> Markup {
    html! {
        ul.troubles {
            @for (trouble, devices) in faults.iter().filter_map(|it| Some((it.first()?, devices(it)))) {
                li {
                    span.down aria-hidden="true" { "✕ " }
                    (host_link(trouble.hostname)) " "
                    @if !devices.is_empty() { "GPU " (devices) " " }
                    (shown(&trouble.words))
                    @if let Some(alert) = runbook(trouble.kind) {
                        " " a href={ "./runbooks#" (alert) } { "what to do" }
                    }
                }
            }
        }
    }
}

fn devices(troubles: &[Trouble<'_>]) -> String {
    let devices = troubles.iter().filter_map(|it| it.device);
    devices.map(|it| it.to_string()).collect::<Vec<_>>().join(", ")
}

/// The section of the runbooks.
const fn runbook(kind: TroubleKind) -> Option<&'static str> {
    match kind {
        TroubleKind::HostDown => Some("GenvHostDown"),
        TroubleKind::GpuDown => Some("GenvDeviceLost"),
        // As the alerts divide them.
        TroubleKind::Xid(13 | 31 | 43 | 45 | 68 | 69) => Some("GenvDeviceXidApplication"),
        TroubleKind::Xid(48 | 62..=64 | 74 | 79 | 94 | 95 | 110 | 119 | 120 | 140 | 143) => {
            Some("GenvDeviceXidHardware")
        }
        TroubleKind::Xid(_) => Some("GenvDeviceXidOther"),
        TroubleKind::Collector => Some("GenvCollectorFailing"),
        TroubleKind::Contradictory => Some("GenvDeviceContradictory"),
        TroubleKind::Unsplit => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_xid_error_leads_to_the_runbook_of_its_alert() {
        let rules = include_str!("../../../prometheus/rules/genv-alerts.yml");
        for alert in ["GenvDeviceXidApplication", "GenvDeviceXidHardware"] {
            let (_, rule) = rules.split_once(&format!("alert: {alert}\n")).unwrap();
            let (_, codes) = rule.split_once("xid=~\"").unwrap();
            let (codes, _) = codes.split_once('"').unwrap();
            let codes: Vec<u64> = codes.split('|').map(|it| it.parse().unwrap()).collect();
            let linked: Vec<u64> = (0..1000).filter(|it| runbook(TroubleKind::Xid(*it)) == Some(alert)).collect();
            assert_eq!(linked, codes, "{alert}");
        }
        assert_eq!(runbook(TroubleKind::Xid(1000)), Some("GenvDeviceXidOther"));
    }
}
