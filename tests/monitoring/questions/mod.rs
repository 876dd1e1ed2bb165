//! The ten questions that people ask of their lab, each answered by what is shipped: a panel of a dashboard or an alert.
//!
//! The answers are known from the scenario alone, by hand: [`week`] tells how.

mod week;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_tests::dashboard::{Dashboard, Panel};
use genv_tests::history::Past;

use crate::dashboards::interpolate::Times;
use crate::dashboards::with_all;
use week::{THE_WEEK, time};

/// How far from the value that is wanted an answer may be.
type Within = fn(f64) -> f64;

const ROUNDING: Within = |wanted| wanted.abs() * 1e-9;

/// In hours. Prometheus sees a counter at scrapes, a minute apart here, and extrapolates to the edges of an hour: the
/// time of a user who comes, goes, begins or pauses, or of an exporter that ends, is up to a minute too long or too short.
/// Frank comes, loses a GPU under an exporter that begins anew, has it back, and his host dies: two minutes in all.
const TWO_MINUTES: Within = |_| 2.0 * A_MINUTE;

/// The same of energy: of the shortest use, dave's of twelve hours, a minute is 0.14 %.
const TWO_PER_MILLE: Within = |wanted| wanted.abs() * 0.002;

const A_MINUTE: f64 = 1.0 / 60.0;

const GIB: f64 = (1_u64 << 30) as f64;

/// Labels of an answer that are told apart, joined by a space, and its value.
type Answer<'a> = &'a [(&'a str, f64)];

// The questions, as docs/stack.md has them.
const FREE: &str = "What is free now, of which model?";
const HOLDERS: &str = "Who holds what?";
const IDLE: &str = "Who held GPUs idle last week, how many GPU-hours?";
const ENERGY: &str = "How many kWh per user?";
const XID: &str = "Which XID hit whom?";
const MEMORY: &str = "Who is over their memory?";
const STALE: &str = "Is any exporter stale?";
const DOWN: &str = "Which host is down?";
const PEAK: &str = "How full are we at peak?";
const OUTSIDE: &str = "Who uses GPUs without an environment?";

type Answered = fn(&Lab) -> Result<()>;

struct Lab {
    past: Past,
    overview: Dashboard,
    users: Dashboard,
    host: Dashboard,
}

impl Lab {
    fn new() -> Result<Self> {
        let past = week::history()?.start("prometheus-3")?;
        Ok(Self {
            past,
            overview: Dashboard::of_file("overview")?,
            users: Dashboard::of_file("users")?,
            host: Dashboard::of_file("host")?,
        })
    }

    /// Whether a query gives these values by these labels at this time, and no others but zeros.
    fn gives(&self, promql: &str, by: &[&str], hours: f64, expected: Answer, within: Within) -> Result<()> {
        let answer = self.past.prometheus.query_at(promql, self.past.from + time(hours))?;
        let mut told = BTreeMap::new();
        for (labels, value) in answer.iter().filter(|(_, value)| *value != 0.0) {
            let values = by.iter().map(|label| labels.get(*label).map_or("", String::as_str));
            let key = values.collect::<Vec<_>>().join(" ");
            ensure!(told.insert(key, *value).is_none(), "{labels:?} stands twice in {answer:?}");
        }
        let near = |value: &f64, wanted: f64| (value - wanted).abs() <= within(wanted);
        let right = |(key, wanted): &(&str, f64)| told.get(*key).is_some_and(|value| near(value, *wanted));
        let same = told.len() == expected.len() && expected.iter().all(right);
        ensure!(same, "at {hours} h: {told:?}\n  rather than {expected:?}\n  from {promql}");
        Ok(())
    }

    fn what_is_free_now_and_of_which_model(&self) -> Result<()> {
        let free = column(&self.overview, "Free GPUs by model", "Free")?;
        let of = column(&self.overview, "Free GPUs by model", "Of")?;
        let by = &["model"];
        // Monday 06:00: GPU 2 of gpu01, and GPU 0 of gpu02, which erin takes at 07:20.
        self.gives(&free, by, 6.0, &[(week::A100, 1.0), (week::RTX, 1.0)], ROUNDING)?;
        // Tuesday 03:00: GPU 1 of gpu02 is lost; a GPU that is lost is not free, and still is one of two.
        self.gives(&free, by, 27.0, &[(week::A100, 1.0)], ROUNDING)?;
        self.gives(&of, by, 28.0, &[(week::A100, 3.0), (week::RTX, 2.0)], ROUNDING)?;
        // Tuesday 12:00: dave computes on the one that nobody holds.
        self.gives(&free, by, 36.0, &[], ROUNDING)
    }

    fn who_holds_what(&self) -> Result<()> {
        let share = column(&self.overview, "GPUs and their holders", "Share")?;
        let by = &["username", "env_name", "hostname", "index"];
        let holders: Answer = &[
            ("alice training gpu01 0", 1.0),
            ("bob parked gpu01 1", 0.25),
            ("carol notebook gpu01 1", 0.5),
            ("erin measuring gpu02 0", 1.0),
            ("frank waiting gpu02 1", 1.0),
        ];
        self.gives(&share, by, 8.0, holders, ROUNDING)?;
        // Tuesday 04:00: the exporter began anew while frank's GPU was lost.
        self.gives(&share, by, 28.0, holders, ROUNDING)?;
        // Friday 12:00: of gpu02 nothing is heard any more.
        self.gives(&share, by, 108.0, &holders[..3], ROUNDING)?;

        // The first table has a line for each GPU, with its model in short. 6 is free, 5 idle, 4 outside, 3 held, 0 lost.
        let of = |name| column(&self.overview, "Every GPU: free ones first, then those that are idle longest", name);
        let by = &["hostname", "index", "short"];
        let states = |training, third, erin, frank| {
            let lines = [
                ("gpu01 0 A100 40GB", training),
                ("gpu01 1 A100 40GB", 3.0),
                ("gpu01 2 A100 40GB", third),
                ("gpu02 0 RTX 3090", erin),
                ("gpu02 1 RTX 3090", frank),
            ];
            lines.into_iter().filter(|(_, state)| *state != 0.0).collect::<Vec<_>>()
        };
        let state = of("State")?;
        self.gives(&state, by, 6.0, &states(3.0, 6.0, 6.0, 5.0), ROUNDING)?;
        self.gives(&state, by, 27.0, &states(3.0, 6.0, 3.0, 0.0), ROUNDING)?;
        self.gives(&state, by, 36.0, &states(5.0, 4.0, 3.0, 5.0), ROUNDING)?;
        // Alice since Tuesday 08:00; frank, who never computes, for all of the last day but the hours of the lost GPU.
        let idle: Answer = &[("gpu01 0", 4.0 * 3600.0), ("gpu02 1", 21.0 * 3600.0)];
        self.gives(&of("Idle for")?, &["hostname", "index"], 36.0, idle, |_| 180.0)?;
        // Who uses a GPU outside stands there also where another user holds it: dave on GPU 1 since 168:20.
        let by = &["hostname", "index", "holder", "env_name"];
        let using: Answer =
            &[("gpu01 0 alice training", 1.0), ("gpu01 1 dave held by carol", 0.5), ("gpu01 2 dave outside", 1.0)];
        self.gives(&of("B")?, by, 168.45, using, ROUNDING)
    }

    fn who_held_gpus_idle_last_week_and_for_how_many_gpu_hours(&self) -> Result<()> {
        let of = |name| column(&self.users, "Users", name);
        let by = &["username"];
        self.gives(&of("Idle GPU-h")?, by, THE_WEEK, week::IDLE_HOURS, TWO_MINUTES)?;
        // What could not be measured is held, and neither idle nor busy.
        let unmeasured: Answer = &[("erin", 59.1667), ("frank", 3.0)];
        self.gives(&of("Unmeasured GPU-h")?, by, THE_WEEK, unmeasured, TWO_MINUTES)?;
        let busy: Answer = &[("alice", 56.0), ("carol", 84.0)];
        self.gives(&of("Busy GPU-h")?, by, THE_WEEK, busy, TWO_MINUTES)?;
        let held: Answer = &[("alice", 168.0), ("bob", 42.0), ("carol", 84.0), ("erin", 60.1667), ("frank", 66.2069)];
        self.gives(&of("Held GPU-h")?, by, THE_WEEK, held, TWO_MINUTES)?;
        // Monday 08:00: the hour that runs is not told yet, but what erin held in her first one is.
        let held: Answer =
            &[("alice", 7.2931), ("bob", 1.8233), ("carol", 3.6465), ("erin", 0.6667), ("frank", 7.2931)];
        self.gives(&of("Held GPU-h")?, by, 8.0, held, TWO_MINUTES)
    }

    fn how_many_kwh_per_user(&self) -> Result<()> {
        let energy = column(&self.users, "Users", "Energy kWh")?;
        self.gives(&energy, &["username"], THE_WEEK, week::KWH, TWO_PER_MILLE)?;
        let nobody = column(&self.users, "Energy", "nobody")?;
        self.gives(&nobody, &[], THE_WEEK, &[("", week::KWH_OF_NOBODY)], TWO_PER_MILLE)
    }

    fn which_xid_hit_whom(&self) -> Result<()> {
        let errors = column(&self.users, "XID errors that hit users", "Errors")?;
        let by = &["username", "hostname", "index", "model", "xid"];
        let hits: Answer = &[
            ("alice gpu01 0 NVIDIA A100-SXM4-40GB 31", 1.0),
            ("bob gpu01 1 NVIDIA A100-SXM4-40GB 43", 5.0),
            ("carol gpu01 1 NVIDIA A100-SXM4-40GB 43", 5.0),
            ("frank gpu02 1 NVIDIA GeForce RTX 3090 79", 1.0),
        ];
        self.gives(&errors, by, THE_WEEK, hits, ROUNDING)?;
        // That of GPU 2 hit nobody.
        let of_gpus = column(&self.users, "XID errors by GPU", "Errors")?;
        let errors: Answer = &[("gpu01 0 31", 1.0), ("gpu01 1 43", 5.0), ("gpu01 2 13", 1.0), ("gpu02 1 79", 1.0)];
        self.gives(&of_gpus, &["hostname", "index", "xid"], THE_WEEK, errors, ROUNDING)
    }

    fn who_is_over_their_memory(&self) -> Result<()> {
        let over = format!("({}) > 1", column(&self.overview, "GPUs and their holders", "Of asked")?);
        let by = &["hostname", "index"];
        // 24 GiB of the 20 GiB that she asked for, since Friday 06:00; on Thursday 14 GiB.
        self.gives(&over, by, 90.0, &[], ROUNDING)?;
        self.gives(&over, by, THE_WEEK, &[("gpu01 1", 1.2)], ROUNDING)
    }

    fn is_any_exporter_stale(&self) -> Result<()> {
        let stale = column(&self.overview, "State of each host", "Stale")?;
        let fires = r#"ALERTS{alertname="GenvSnapshotStale", alertstate="firing"}"#;
        // A collector that was heard once only has not stood still.
        self.gives(&stale, &["hostname"], 0.5 * A_MINUTE, &[], ROUNDING)?;
        // Saturday 12:10, ten minutes after gpu01's three collectors have stopped. An hour before they had not.
        self.gives(&stale, &["hostname"], 131.0, &[], ROUNDING)?;
        self.gives(fires, &["hostname"], 131.0, &[], ROUNDING)?;
        self.gives(&stale, &["hostname"], 132.0 + 10.0 * A_MINUTE, &[("gpu01", 3.0)], ROUNDING)?;
        self.gives(fires, &["hostname"], 132.0 + 10.0 * A_MINUTE, &[("gpu01", 1.0)], ROUNDING)
    }

    fn which_host_is_down(&self) -> Result<()> {
        let up = column(&self.overview, "State of each host", "State")?;
        let by = &["hostname"];
        self.gives(&up, by, 66.0, &[("gpu01", 1.0), ("gpu02", 1.0)], ROUNDING)?;
        // Wednesday 19:00, half an hour after gpu02 died: it stands there, as 0.
        self.gives(&format!("1 - ({up})"), by, 67.0, &[("gpu02", 1.0)], ROUNDING)?;
        let fires = r#"ALERTS{alertname="GenvExporterDown", alertstate="firing"}"#;
        self.gives(fires, &["instance"], 66.0, &[], ROUNDING)?;
        // Also when it has been down for days.
        for hours in [67.0, THE_WEEK] {
            self.gives(fires, &["instance"], hours, &[("gpu02:9820", 1.0)], ROUNDING)?;
        }
        Ok(())
    }

    fn how_full_are_we_at_peak(&self) -> Result<()> {
        // Wednesday from 10:00 to 11:00, when all GPUs are held but a quarter of GPU 1 of gpu01.
        let peak: Answer = &[("", 4.75 / 5.0)];
        let at_once = column(&self.overview, "At the peak", "held")?;
        self.gives(&at_once, &[], THE_WEEK, peak, ROUNDING)?;
        let fullness = column(&self.users, "Peak fullness", "")?;
        self.gives(&fullness, &[], THE_WEEK, peak, ROUNDING)
    }

    fn who_uses_gpus_without_an_environment(&self) -> Result<()> {
        let now = column(&self.overview, "GPUs used outside environments", "Of the time")?;
        let by = &["username", "hostname", "index", "model"];
        let dave: Answer = &[("dave gpu01 2 NVIDIA A100-SXM4-40GB", 1.0)];
        self.gives(&now, by, 30.0, &[], ROUNDING)?;
        self.gives(&now, by, 36.0, dave, ROUNDING)?;
        let outside = column(&self.users, "Users", "Outside GPU-h")?;
        self.gives(&outside, &["username"], THE_WEEK, &[("dave", 12.2931)], TWO_MINUTES)
    }

    /// What Host and device tells of holders, errors and memory.
    fn who_held_each_gpu_and_whom_its_errors_hit(&self) -> Result<()> {
        let held = column(&self.host, "Who held each GPU", "")?;
        let by = &["hostname", "index", "who"];
        let always: Answer = &[
            ("gpu01 0 alice / training", 1.0),
            ("gpu01 1 bob / parked", 0.25),
            ("gpu01 1 carol / notebook", 0.5),
            ("gpu02 0 erin / measuring", 1.0),
            ("gpu02 1 frank / waiting", 1.0),
        ];
        // 2 is free, 3 outside, 5 lost.
        let lost = [always, &[("gpu01 2 free", 2.0), ("gpu02 1 lost", 5.0)]].concat();
        self.gives(&held, by, 27.0, &lost, ROUNDING)?;
        let outside = [always, &[("gpu01 2 dave, outside", 3.0)]].concat();
        self.gives(&held, by, 36.0, &outside, ROUNDING)?;

        let hit = column(&self.host, "XID errors and who held the GPU", "")?;
        let by = &["hostname", "index", "xid", "who"];
        let soon = |hours: f64| hours + 2.0 * A_MINUTE;
        self.gives(&hit, by, soon(20.5), &[("gpu01 2 13 nobody", 1.0)], ROUNDING)?;
        let both: Answer = &[("gpu01 1 43 bob / parked", 1.0), ("gpu01 1 43 carol / notebook", 1.0)];
        self.gives(&hit, by, soon(50.5), both, ROUNDING)?;
        self.gives(&hit, by, soon(60.5), &[("gpu01 0 31 alice / training", 1.0)], ROUNDING)?;

        let memory = |name| column(&self.host, "Memory by environment", name);
        self.gives(&memory("others")?, &["hostname"], 36.0, &[("gpu01", 5.0 * GIB)], ROUNDING)?;
        let capacity: Answer = &[("gpu01", 120.0 * GIB), ("gpu02", 48.0 * GIB)];
        self.gives(&memory("capacity")?, &["hostname"], 36.0, capacity, ROUNDING)?;
        let of_asked = column(&self.host, "Memory of what was asked for", "")?;
        let asked: Answer = &[("alice training", 0.75), ("carol notebook", 0.7), ("erin measuring", 20.0 / 24.0)];
        self.gives(&of_asked, &["username", "env_name"], 36.0, asked, ROUNDING)
    }

    /// The PromQL of docs/stack.md, which has no panel around it.
    fn what_is_documented(&self) -> Result<()> {
        let user = &["username"];
        let hit = &["username", "hostname", "index", "xid"];
        let gives = |question: &str, by: &[&str], hours, expected: Answer, within| {
            let promql = documented(question)?;
            // What is 0 is left out of answers.
            let promql = if promql.ends_with("== 0") { format!("1 + ({promql})") } else { promql };
            self.gives(&promql, by, hours, expected, within)
        };
        let free: Answer = &[(week::A100, 1.0), (week::RTX, 1.0)];
        gives(FREE, &["model"], 6.0, free, ROUNDING)?;
        let holders: Answer =
            &[("alice training gpu01 0", 1.0), ("bob parked gpu01 1", 0.25), ("carol notebook gpu01 1", 0.5)];
        gives(HOLDERS, &["username", "env_name", "hostname", "index"], 108.0, holders, ROUNDING)?;
        gives(IDLE, user, THE_WEEK, week::IDLE_HOURS, TWO_MINUTES)?;
        let kwh = [week::KWH, &[("(none)", week::KWH_OF_NOBODY)]].concat();
        gives(ENERGY, user, THE_WEEK, &kwh, TWO_PER_MILLE)?;
        let hits: Answer =
            &[("alice gpu01 0 31", 1.0), ("bob gpu01 1 43", 5.0), ("carol gpu01 1 43", 5.0), ("frank gpu02 1 79", 1.0)];
        gives(XID, hit, THE_WEEK, hits, ROUNDING)?;
        gives(MEMORY, user, THE_WEEK, &[("carol", 1.2)], ROUNDING)?;
        // The last snapshot is of 131:59.
        let stale: Answer = &[("gpu01", 11.0 * 60.0)];
        gives(STALE, &["hostname"], 132.0 + 10.0 * A_MINUTE, stale, ROUNDING)?;
        gives(DOWN, &["hostname"], 67.0, &[("gpu02", 1.0)], ROUNDING)?;
        gives(PEAK, &[], THE_WEEK, &[("", 0.95)], ROUNDING)?;
        gives(OUTSIDE, &["username", "hostname", "index"], 36.0, &[("dave gpu01 2", 1.0)], ROUNDING)
    }
}

#[test]
fn the_ten_questions_are_answered() -> Result<()> {
    let lab = Lab::new()?;
    let questions: [(&str, Answered); 12] = [
        (FREE, Lab::what_is_free_now_and_of_which_model),
        (HOLDERS, Lab::who_holds_what),
        (IDLE, Lab::who_held_gpus_idle_last_week_and_for_how_many_gpu_hours),
        (ENERGY, Lab::how_many_kwh_per_user),
        (XID, Lab::which_xid_hit_whom),
        (MEMORY, Lab::who_is_over_their_memory),
        (STALE, Lab::is_any_exporter_stale),
        (DOWN, Lab::which_host_is_down),
        (PEAK, Lab::how_full_are_we_at_peak),
        (OUTSIDE, Lab::who_uses_gpus_without_an_environment),
        ("Host and device", Lab::who_held_each_gpu_and_whom_its_errors_hit),
        ("docs/stack.md", Lab::what_is_documented),
    ];
    let wrong = questions.into_iter().filter_map(|(question, answered)| {
        let error = answered(&lab).err()?;
        Some(format!("{question}\n  {error:#}\n"))
    });
    let wrong: String = wrong.collect();
    ensure!(wrong.is_empty(), "wrong answers:\n{wrong}");
    Ok(())
}

/// What the column of the table with this title asks, or the series of a panel, or the query with this reference; an empty
/// name is the only one's. Every variable is set to All, and the last week is asked about.
fn column(dashboard: &Dashboard, title: &str, column: &str) -> Result<String> {
    let mut panels = dashboard.queried_panels();
    let panel = panels.find(|panel| panel.title() == title).with_context(|| format!("no panel {title}"))?;
    let query = named(panel, column);
    let single = panel.targets().count() == 1;
    let target = panel.targets().find(|target| match &query {
        _ if column.is_empty() => single,
        Some(query) => query.is_empty() || target.reference() == query,
        None => target.legend() == column || target.reference() == column,
    });
    let target = target.with_context(|| format!("the panel {title} has no {column}"))?;
    let (interval, rate_interval) = (Duration::from_secs(60), Duration::from_secs(240));
    with_all(dashboard, target, &Times { start: 0, end: 7 * 86_400, interval, rate_interval })
}

/// The query whose values stand in this column: `C` of `Value #C`, nothing if there is one alone.
fn named(panel: Panel<'_>, column: &str) -> Option<String> {
    let mut transformations = panel.transformations().iter();
    let organize = transformations.find(|one| one["id"] == "organize")?;
    let names = organize["options"]["renameByName"].as_object()?;
    let (field, _) = names.iter().find(|(_, shown)| *shown == column)?;
    Some(field.strip_prefix("Value")?.trim_start_matches(" #").to_owned())
}

fn documented(question: &str) -> Result<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/stack.md"))?;
    let row = text.lines().find(|row| row.starts_with(&format!("| {question} |")));
    let row = row.with_context(|| format!("docs/stack.md has no row for '{question}'"))?;
    Ok(row.split('`').nth(1).context("a row without PromQL")?.to_owned())
}
