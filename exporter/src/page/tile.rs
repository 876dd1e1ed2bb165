//! One GPU as a tile.

use genv_core::duration::format_span;
use genv_core::lab::{Activity, Gpu, GpuState, Hold, short_model};
use genv_core::model::{Device, Snapshot};
use genv_core::text::counted;
use maud::{Markup, html};

use super::parts::{Look, amount, bar, gib, host_link, percent, shown, since, user};

/// The tiles of these GPUs, each with its snapshot; with the name of the host where they are of several.
pub(super) fn tiles<'a>(gpus: impl IntoIterator<Item = (&'a Snapshot, Gpu<'a>)>, with_host: bool) -> Markup {
    html! {
        ul.gpus {
            @for (snapshot, gpu) in gpus { (tile(snapshot, &gpu, with_host)) }
        }
    }
}

fn tile(snapshot: &Snapshot, gpu: &Gpu<'_>, with_host: bool) -> Markup {
    let (look, device) = (Look::of(gpu), gpu.device);
    let key =
        if with_host { format!("{} {}", device.index, shown(&snapshot.hostname)) } else { device.index.to_string() };
    html! {
        li class=(look.class()) data-key=(key) {
            p.top {
                b { @if with_host { (host_link(&snapshot.hostname)) " " } "GPU " (device.index) }
                " "
                span.model { (shown(&short_model(device.name.as_deref().unwrap_or("?")))) }
            }
            p.state { span aria-hidden="true" { (look.symbol()) } " " (state(look, gpu)) }
            @for hold in &gpu.holds { (hold_line(snapshot, hold, gpu.holds.len() > 1)) }
            @if device.up {
                p.measure {
                    "use " (bar(device.measurements.utilization_ratio))
                    span.n { (percent(device.measurements.utilization_ratio)) }
                }
                (memory("memory", device))
                @for part in &gpu.parts {
                    (memory(&format!("{} {}", part.index, shown(part.profile.as_deref().unwrap_or("MIG"))), part))
                }
                p.dim { (power(device)) " · " (amount(device.measurements.temperature_celsius, "°C")) }
            }
            (marks(gpu))
        }
    }
}

/// The state; of a held GPU with its last use.
fn state(look: Look, gpu: &Gpu<'_>) -> String {
    match (gpu.state, gpu.activity()) {
        (GpuState::Held, Some(it)) => format!("held, {}", activity(it)),
        _ => look.words().to_owned(),
    }
}

/// A hold: by which user, since when, and in which environment; only the last may be cut. The use of each is named where
/// there are several.
fn hold_line(snapshot: &Snapshot, hold: &Hold<'_>, several: bool) -> Markup {
    let held = since(snapshot.timestamp_seconds, hold.attachment.attached_timestamp_seconds);
    html! {
        p.holder {
            (user(hold.username())) " "
            small {
                @if several { (activity(hold.activity)) ", " }
                @if let Some(bytes) = hold.attachment.memory_bytes { (gib(bytes)) " GiB " }
                "for " (held)
            }
            " " small.cut { "in " (shown(hold.name())) }
        }
        @if hold.attachment.moved { p.unknown { "? held as another GPU was at this index" } }
    }
}

fn activity(activity: Activity) -> String {
    let unused = if activity.is_idle() { "idle" } else { "unused" };
    match activity {
        Activity::Busy => "busy".to_owned(),
        Activity::UnusedFor(seconds) => format!("{unused} for {}", format_span(seconds)),
        Activity::UnusedForAtLeast(seconds) if seconds < 1.0 => "no use seen yet".to_owned(),
        Activity::UnusedForAtLeast(seconds) => format!("{unused} for at least {}", format_span(seconds)),
        Activity::Unknown => "use not known".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for a bar")]
fn memory(name: &str, device: &Device) -> Markup {
    let memory = device.measurements.memory;
    let share = memory.filter(|it| it.total_bytes > 0).map(|it| it.used_bytes as f64 / it.total_bytes as f64);
    html! {
        p.measure {
            (name) " " (bar(share))
            span.n {
                @match memory {
                    Some(memory) => { (gib(memory.used_bytes)) "/" (gib(memory.total_bytes)) " GiB" }
                    None => "? GiB",
                }
            }
        }
    }
}

fn power(device: &Device) -> String {
    let measured = &device.measurements;
    let limit = measured.power_limit_watts.map(|limit| format!(" of {}", amount(Some(limit), "W")));
    amount(measured.power_watts, "W") + &limit.unwrap_or_default()
}

/// What no environment explains.
fn marks(gpu: &Gpu<'_>) -> Markup {
    let (outside, unknown) = (gpu.outside(), gpu.unknown());
    html! {
        @if outside > 0 { p.used { "▲ " (counted(outside, "process")) " outside" } }
        @if unknown > 0 { p.unknown { "? " (counted(unknown, "process")) " not known" } }
        @if gpu.device.up && !gpu.processes_known { p.unknown { "? processes not known" } }
    }
}
