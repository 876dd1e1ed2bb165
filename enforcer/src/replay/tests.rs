use std::io::{Cursor, Write as _};

use serde_json::{Value, json};

use super::*;

/// Friday, 20 November 2026, 12:00 UTC.
const NOON: f64 = 1_795_176_000.0;

/// Ends everybody at once.
const AT_ONCE: &str = "version: 1
rules: [{kind: non-env-processes, action: terminate, for: 0s, warn: []}]
";

const RULES: &str = "version: 1
timezone: UTC
rules:
  - {kind: non-env-processes, action: terminate, for: 60s, warn: [2m, 1m]}
";

fn collectors(at_seconds: f64) -> Value {
    let collector = json!({"success": true, "current": true, "timestamp_seconds": at_seconds});
    json!({"gpu": collector, "processes": collector, "state": collector})
}

fn snapshot(hostname: &str, after_seconds: f64, processes: &[(u32, &str)]) -> Value {
    let at_seconds = NOON + after_seconds;
    let processes: Vec<Value> = processes
        .iter()
        .map(|(pid, username)| {
            json!({
                "pid": pid, "start_time_ticks": 100, "uid": 2000, "username": username, "comm": "python",
                "attribution": {"state": "outside", "reason": "no_claim"},
                "devices": [{"index": "0", "type": "compute", "memory_used_bytes": 1024}],
            })
        })
        .collect();
    json!({
        "version": 1, "hostname": hostname, "timestamp_seconds": at_seconds, "interval_seconds": 10.0,
        "installed": true, "collectors": collectors(at_seconds), "devices": [], "environments": [],
        "processes": processes, "counters": {},
    })
}

fn lines(snapshots: impl IntoIterator<Item = Value>) -> String {
    snapshots.into_iter().map(|it| format!("{it}\n")).collect()
}

/// A host on which alice's process is outside from the begin to the end.
fn hour(hostname: &str, seconds: u32) -> Vec<Value> {
    (0..=seconds).step_by(10).map(|at| snapshot(hostname, at.into(), &[(42, "alice")])).collect()
}

struct Played {
    whole: Result<bool, String>,
    out: String,
    notes: Vec<String>,
}

impl Played {
    fn events(&self) -> Vec<Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        lines.map(Result::unwrap).collect()
    }

    /// Events with seconds since noon: `violation 60`.
    fn story(&self) -> Vec<String> {
        let story = self.events().into_iter().filter(|it| it["event"] != "summary");
        let line =
            |it: Value| format!("{} {}", it["event"].as_str().unwrap(), it["at_seconds"].as_f64().unwrap() - NOON);
        story.map(line).collect()
    }

    fn actions(&self) -> Vec<String> {
        self.story().into_iter().filter(|it| it.starts_with("action ")).collect()
    }

    fn summary(&self) -> Value {
        self.events().pop().unwrap()
    }
}

fn replayed(rules: &str, recording: impl Into<Vec<u8>>, json: bool) -> Played {
    replayed_as(if json { Form::Json } else { Form::Text }, rules, recording)
}

fn replayed_as(form: Form, rules: &str, recording: impl Into<Vec<u8>>) -> Played {
    let config = Config::parse("rules.yaml", rules).unwrap();
    let input = Box::new(Cursor::new(recording.into()));
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut note = |text: &str| notes.push(text.to_owned());
    let mut groups = |_: &BTreeSet<String>| UserGroups::default();
    let whole = Recording::new("recording", input).and_then(|recording| {
        play(recording, &config, &mut groups, &mut out, &mut note, form, &ProgressLine::on_stderr(false))
    });
    Played { whole: whole.map_err(|error| format!("{error:#}")), out: String::from_utf8(out).unwrap(), notes }
}

#[test]
fn a_recording_is_warned_of_and_acted_upon_by_its_own_clock() {
    let mut day = hour("gpu01", 300);
    day.push(snapshot("gpu01", 310.0, &[]));
    // As people read it.
    let text = replayed(RULES, lines(day.clone()), false).out;
    insta::assert_snapshot!("people_read_what_programs_do", text);
    let plotted = replayed_as(Form::Plotted, RULES, lines(day.clone())).out;
    insta::assert_snapshot!("people_see_when_and_to_whom", plotted.strip_prefix(&text).unwrap());
    let played = replayed(RULES, lines(day), true);
    assert_eq!(played.whole, Ok(true));
    assert_eq!(played.story(), ["violation 60", "warning 60", "warning 120", "action 180", "over 310"]);
    let summary = played.summary();
    assert_eq!(summary["rules"]["non-env-processes"]["actions"], 1);
    assert_eq!(summary["open"], 0);
    assert_eq!(summary["cycles"], 32);
    assert!(played.notes.is_empty(), "{:?}", played.notes);
}

#[test]
fn hosts_that_are_interleaved_are_looked_at_together() {
    let (a, b) = (hour("gpu01", 200), hour("gpu02", 200));
    let both = a.into_iter().zip(b).flat_map(|(a, mut b)| {
        let later = b["timestamp_seconds"].as_f64().unwrap() + 2.5;
        b["timestamp_seconds"] = later.into();
        [a, b]
    });
    let played = replayed(RULES, lines(both), true);
    assert_eq!(played.whole, Ok(true));
    let summary = played.summary();
    assert_eq!(summary["hosts"], json!(["gpu01", "gpu02"]));
    assert_eq!(summary["cycles"], 21);
    assert_eq!(summary["rules"]["non-env-processes"]["actions"], 2);
}

#[test]
fn a_host_that_falls_silent_is_left_alone_and_not_forgotten() {
    let loud = hour("gpu02", 400);
    let silent = hour("gpu01", 100);
    let mut both: Vec<Value> = loud.into_iter().chain(silent).collect();
    both.sort_by(|a, b| {
        let at = |it: &Value| it["timestamp_seconds"].as_f64().unwrap();
        at(a).total_cmp(&at(b))
    });
    let played = replayed(RULES, lines(both), true);
    let of_silent: Vec<Value> = played.events().into_iter().filter(|it| it["hostname"] == "gpu01").collect();
    let words: Vec<&str> = of_silent.iter().filter_map(|it| it["event"].as_str()).collect();
    assert_eq!(words, ["violation", "warning"]);
    assert_eq!(played.summary()["open"], 2);
}

#[test]
fn a_line_that_is_damaged_in_the_middle_is_said_and_left_out() {
    let day = lines(hour("gpu01", 300));
    let mut all: Vec<&str> = day.lines().collect();
    let cut = &all[5][..all[5].len() / 2];
    all[5] = cut;
    all[7] = "{\"version\": 1, \"hostname\": \"x\u{1b}[31m\"}";
    let played = replayed(RULES, all.join("\n"), true);
    assert_eq!(played.whole, Ok(false));
    assert_eq!(played.notes.len(), 2, "{:?}", played.notes);
    let column = cut.len();
    let expected = format!("line 6 is left out: column {column}: EOF while parsing");
    assert!(played.notes[0].starts_with(&expected), "{:?}", played.notes);
    assert!(played.notes[0].ends_with("it was cut off"), "{:?}", played.notes);
    assert!(played.notes[1].starts_with("line 8 is left out: column"));
    assert_eq!(played.summary()["damaged_lines"], 2);
    // A gap that short is none.
    assert_eq!(played.story(), ["violation 60", "warning 60", "warning 120", "action 180"]);
}

#[test]
fn many_damaged_lines_are_counted_and_not_all_told() {
    let mut day = lines(hour("gpu01", 10)).into_bytes();
    // The first is no text at all.
    day.extend(b"\xff\xfe\x00\n");
    day.extend("x\n".repeat(99).into_bytes());
    day.extend(lines([snapshot("gpu01", 20.0, &[])]).into_bytes());
    let played = replayed(RULES, day, true);
    assert_eq!(played.whole, Ok(false));
    assert_eq!(played.notes.len(), TOLD_NOTES + 1);
    assert!(played.notes[0].starts_with("line 3 is left out"));
    assert_eq!(played.notes.last().unwrap(), "80 more notes of this kind are not shown");
    assert_eq!((&played.summary()["damaged_lines"], &played.summary()["snapshots"]), (&json!(100), &json!(3)));
}

#[test]
fn another_version_is_said_and_an_older_writer_of_the_same_is_read() {
    let mut day = hour("gpu01", 100);
    day[1]["version"] = 0.into();
    day[2]["version"] = 7.into();
    // Fields came to version 1 over time.
    for snapshot in &mut day {
        for process in snapshot["processes"].as_array_mut().unwrap() {
            process.as_object_mut().unwrap().remove("comm");
        }
    }
    let played = replayed(RULES, lines(day), true);
    assert_eq!(played.whole, Ok(false));
    assert_eq!(
        played.notes,
        [
            "line 2 is left out: it has version 0 of snapshots, and this program knows 1",
            "line 3 is left out: it has version 7 of snapshots, and this program knows 1",
        ]
    );
    assert_eq!(played.summary()["rules"]["non-env-processes"]["violations"], 1);
}

#[test]
fn a_clock_that_goes_back_is_said_and_shortens_nothing() {
    let mut day = hour("gpu01", 100);
    day.extend((0..=50).map(|cycle| snapshot("gpu01", f64::from(cycle) * 10.0 - 3600.0, &[(42, "alice")])));
    let played = replayed(RULES, lines(day), true);
    assert_eq!(played.whole, Ok(true));
    assert_eq!(played.notes.len(), 1, "{:?}", played.notes);
    assert!(played.notes[0].starts_with("line 12: the time of gpu01 goes back by 1h1m"));
    // 100 s were seen before, 40 s of the two minutes after the warning; the first that is older could have come late.
    assert_eq!(played.actions()[..1], ["action -3510"]);
}

#[test]
fn a_gap_is_said_and_no_time_counts_through_it() {
    let mut day = hour("gpu01", 100);
    day.extend((0..=30).map(|cycle| snapshot("gpu01", 4000.0 + f64::from(cycle) * 10.0, &[(42, "alice")])));
    let played = replayed(RULES, lines(day), true);
    assert_eq!(played.notes.len(), 1, "{:?}", played.notes);
    assert!(played.notes[0].starts_with("line 12: gpu01 told nothing for 1h5m"));
    assert_eq!(played.actions()[..1], ["action 4080"]);
}

#[test]
fn what_holds_no_snapshot_is_refused_with_what_to_do() {
    for (recording, why) in [("", "it is empty"), ("\n\n", "it is empty"), ("a\nb\n", "none of its lines")] {
        let error = replayed(RULES, recording, false).whole.unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(error.contains("genv snapshot --follow"), "{error}");
    }
}

#[test]
fn a_compressed_recording_is_read_and_a_broken_one_told_up_to_its_damage() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(lines(hour("gpu01", 3000)).as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let played = replayed(RULES, gzip.clone(), true);
    assert_eq!(played.whole, Ok(true));
    assert_eq!(played.summary()["snapshots"], 301);
    let broken = replayed(RULES, &gzip[..gzip.len() - 400], true);
    let error = broken.whole.clone().unwrap_err();
    assert!(error.contains("cannot read recording from line"), "{error}");
    assert!(broken.summary()["snapshots"].as_u64().is_some_and(|it| it < 301));
}

#[test]
fn the_breaker_would_have_tripped_where_most_users_were_hit_at_once() {
    let played = replayed(AT_ONCE, lines([snapshot("gpu01", 0.0, &[(42, "alice"), (43, "bob"), (44, "carol")])]), true);
    let story = played.story();
    assert_eq!(story.iter().filter(|it| it.starts_with("breaker ")).count(), 1, "{story:?}");
    assert_eq!(played.summary()["breaker_seconds"], NOON);
}

#[test]
fn what_is_told_long_after_another_host_is_no_part_of_the_same_look() {
    let day = [snapshot("gpu01", 0.0, &[(42, "alice")]), snapshot("gpu02", 4000.0, &[(42, "alice")])];
    let played = replayed(AT_ONCE, lines(day), true);
    assert_eq!(played.actions(), ["action 0", "action 4000"]);
}
