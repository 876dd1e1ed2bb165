use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use jiff::tz::TimeZone;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use serde_json::{Value, json};

use super::draw::{Frame, HELP, draw};
use super::enforcer::Against;
use super::grid::Grid;
use super::history::History;
use super::tabs::Facts;
use super::view::{View, Wish};

const GIB: u64 = 1 << 30;

/// Friday, 11:41:00.
const NOW: f64 = 1_795_174_860.0;

fn host(hostname: &str, devices: Value, environments: Value, processes: Value) -> HostSnapshot {
    let current = json!({"success": true, "current": true, "timestamp_seconds": NOW});
    let devices = devices.as_array().unwrap().iter().enumerate().map(|(index, device)| {
        let mut all = json!({"index": index.to_string(), "uuid": "GPU-1", "up": true, "processes_measured": true});
        all.as_object_mut().unwrap().extend(device.as_object().unwrap().clone());
        all
    });
    let snapshot = json!({
        "version": 1, "hostname": hostname, "timestamp_seconds": NOW, "interval_seconds": 2.0, "installed": true,
        "driver_version": "550.54.15", "collectors": {"gpu": current, "processes": current, "state": current},
        "devices": devices.collect::<Vec<_>>(), "environments": environments, "processes": processes, "counters": {},
    });
    let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
    HostSnapshot {
        hostname: hostname.to_owned(),
        up: true,
        received_timestamp_seconds: Some(NOW),
        snapshot: Some(Arc::new(snapshot)),
        ssh: None,
    }
}

fn gpu(name: &str, utilization: f64, used_gibibytes: u64, holders: &[&str]) -> Value {
    let attachments = holders.iter().map(|eid| json!({"eid": eid, "share_ratio": 1.0}));
    let memory = json!({"total_bytes": 80 * GIB, "used_bytes": used_gibibytes * GIB, "free_bytes": 0});
    json!({
        "name": name, "attachments": attachments.collect::<Vec<_>>(),
        "measurements": {
            "utilization_ratio": utilization, "memory": memory, "power_watts": 312.4, "temperature_celsius": 61.0,
        },
    })
}

fn environment(eid: &str, username: &str, name: &str, index: &str, last_active: f64) -> Value {
    json!({
        "eid": eid, "username": username, "name": name, "created_timestamp_seconds": NOW - 7_500.0,
        "lease_end_timestamp_seconds": NOW + 3_600.0,
        "devices": [{
            "index": index, "attached": true, "utilization_ratio": 0.5, "memory_used_bytes": 70 * GIB,
            "last_active_timestamp_seconds": last_active,
        }],
    })
}

fn process(pid: u32, username: &str, index: &str, attribution: &Value) -> Value {
    json!({
        "pid": pid, "username": username, "comm": "python3", "attribution": attribution,
        "devices": [{"index": index, "type": "compute", "memory_used_bytes": 8 * GIB, "utilization_ratio": 0.5}],
    })
}

/// A host with GPUs in every state.
fn lab() -> HostSnapshot {
    const A100: &str = "NVIDIA A100-SXM4-80GB";
    let mut unmeasured = gpu(A100, 0.0, 0, &[]);
    unmeasured["measurements"] = json!({});
    unmeasured["processes_measured"] = false.into();
    let devices = json!([
        gpu(A100, 0.98, 70, &["1"]),
        gpu(A100, 0.0, 62, &["2"]),
        gpu(A100, 0.0, 0, &[]),
        gpu("NVIDIA H200", 0.31, 8, &[]),
        {"name": "NVIDIA H200", "up": false},
        unmeasured,
    ]);
    let environments = json!([
        environment("1", "alice", "training", "0", NOW),
        environment("2", "bob", "just-in-case", "1", NOW - 7_500.0)
    ]);
    let (of, outside) =
        (json!({"state": "environment", "eid": "1"}), json!({"state": "outside", "reason": "no_claim"}));
    let unknown = json!({"state": "unknown", "reason": "unreadable"});
    let processes =
        json!([process(71, "alice", "0", &of), process(72, "eve", "3", &outside), process(73, "eve", "1", &unknown)]);
    host("gpu01", devices, environments, processes)
}

/// A host that cannot be reached.
fn dead() -> HostSnapshot {
    let error = "cannot connect to gpu02: it does not answer".to_owned();
    HostSnapshot {
        hostname: "gpu02".to_owned(),
        up: false,
        received_timestamp_seconds: None,
        snapshot: None,
        ssh: Some(CollectorStatus { error: Some(error), ..CollectorStatus::default() }),
    }
}

/// A user who looks at hosts.
struct Seat {
    hosts: Vec<HostSnapshot>,
    view: View,
    history: History,
    against: Against,
    shown: Grid,
    size: (u16, u16),
}

impl Seat {
    fn new(hosts: Vec<HostSnapshot>, width: u16, height: u16) -> Self {
        let mut history = History::default();
        history.record(&hosts);
        let shown = Grid { columns: Vec::new(), rows: Vec::new() };
        let (view, against) = (View::default(), Against::default());
        Self { hosts, view, history, against, shown, size: (width, height) }
    }

    /// The lines on the screen.
    fn screen(&mut self) -> String {
        let zone = TimeZone::UTC;
        let facts = Facts { hosts: &self.hosts, history: &self.history, own: "alice", zone: &zone };
        let received_seconds = (!self.hosts.is_empty()).then_some(NOW);
        let frame = Frame { facts, against: &self.against, received_seconds, awaited: "reading" };
        let (width, height) = self.size;
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        let grid = facts.grid(self.view.place.tab);
        self.shown = draw(&mut buffer, &mut self.view, &frame, grid);
        let lines = buffer.content().chunks(width.into()).map(|line| {
            let mut text = String::new();
            let mut hidden = 0;
            for cell in line {
                let width = unicode_width::UnicodeWidthStr::width(cell.symbol());
                if hidden == 0 {
                    text.push_str(cell.symbol());
                }
                hidden = if hidden > 0 { hidden - 1 } else { width.saturating_sub(1) };
            }
            text.trim_end().to_owned()
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Presses keys with a screen after each. Returns what the last one asks of the program.
    fn press(&mut self, keys: &str) -> Wish {
        self.screen();
        let mut wish = Wish::Go;
        for word in keys.split_whitespace() {
            let code = match word {
                "up" => KeyCode::Up,
                "down" => KeyCode::Down,
                "pgup" => KeyCode::PageUp,
                "pgdn" => KeyCode::PageDown,
                "home" => KeyCode::Home,
                "end" => KeyCode::End,
                "tab" => KeyCode::Tab,
                "backtab" => KeyCode::BackTab,
                "enter" => KeyCode::Enter,
                "esc" => KeyCode::Esc,
                "backspace" => KeyCode::Backspace,
                word => KeyCode::Char(word.trim_start_matches('^').chars().next().unwrap()),
            };
            let modifiers = if word.starts_with('^') { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
            wish = self.view.press(KeyEvent::new(code, modifiers), &self.shown);
            self.screen();
        }
        wish
    }

    /// The state in words.
    fn state(&self) -> String {
        let View { place, is_editing, page, scroll, position, .. } = &self.view;
        let mut words = place.tab.name().to_owned();
        if let Some(scope) = &place.scope {
            words += &format!(" of {}", scope.words());
        }
        words += &format!(" {position}");
        if *is_editing || !place.filter.is_empty() {
            words += &format!(" '{}{}'", place.filter, if *is_editing { "_" } else { "" });
        }
        let sorting = self.view.sorting();
        if let Some(column) = sorting.column {
            words += &format!(" by {column}");
        }
        if sorting.is_reversed {
            words += " reversed";
        }
        if let Some(page) = page {
            words += &format!(" {page:?} {scroll}");
        }
        words
    }
}

#[test]
fn each_key_changes_the_view() {
    for (keys, state) in [
        ("", "devices 0"),
        // Rows.
        ("j", "devices 1"),
        ("down down up", "devices 1"),
        ("j j k", "devices 1"),
        ("k", "devices 0"),
        ("end", "devices 5"),
        ("end down", "devices 5"),
        ("end home", "devices 0"),
        ("pgdn", "devices 4"),
        ("end pgup", "devices 1"),
        // Tables.
        ("e", "environments 0"),
        ("u", "users 0"),
        ("p", "processes 0"),
        ("h", "hosts 0"),
        ("h d", "devices 0"),
        ("2", "environments 0"),
        ("5 1", "devices 0"),
        ("tab tab", "users 0"),
        ("backtab", "hosts 0"),
        ("j j e d", "devices 0"),
        // From a device to its holder, to its processes, and back.
        ("enter", "environments of GPU 0 of gpu01 0"),
        ("enter enter", "processes of environment 1 of gpu01 0"),
        ("enter enter enter", "processes of environment 1 of gpu01 0"),
        ("enter enter esc", "environments of GPU 0 of gpu01 0"),
        ("j enter enter esc backspace", "devices 1"),
        ("esc", "devices 0"),
        ("enter e", "environments 0"),
        // A GPU that is used and not held has processes; a free one leads nowhere.
        ("j j j enter", "processes of GPU 3 of gpu01 0"),
        ("j j enter", "devices 2"),
        ("u enter", "environments of the user bob 0"),
        ("u end enter", "processes of the user eve 0"),
        ("h enter", "devices of gpu01 0"),
        // The filter.
        ("/ b o q", "devices 0 'boq_'"),
        ("/ b o b enter", "devices 0 'bob'"),
        ("/ b o b enter esc", "devices 1"),
        ("/ b o esc", "devices 1"),
        ("/ b o backspace", "devices 1 'b_'"),
        ("/ backspace", "devices 0"),
        ("/ b o ^u", "devices 1 '_'"),
        ("/ g down", "devices 1 'g_'"),
        ("/ b o b enter e", "environments 0 'bob'"),
        ("/ b o b enter enter esc", "devices 0 'bob'"),
        // The selection stays at its row.
        ("j / b o b enter esc", "devices 1"),
        // Sorting.
        ("s", "devices 0 by GPU"),
        ("s r", "devices 5 by GPU reversed"),
        ("r", "devices 5 reversed"),
        ("s r s", "devices 0 by MODEL"),
        ("e s s s s s s s s s s s", "environments 0"),
        // Pages.
        ("?", "devices 0 Help 0"),
        ("? ?", "devices 0"),
        ("? q", "devices 0"),
        ("? esc", "devices 0"),
        ("? j j k", "devices 0 Help 1"),
        ("? j t", "devices 0 Troubles 0"),
        ("!", "devices 0 Enforcer 0"),
        ("! u", "users 0"),
        ("? /", "devices 0 '_'"),
    ] {
        // Four rows.
        let mut seat = Seat::new(vec![lab()], 80, 6);
        let wish = seat.press(keys);
        assert_eq!((seat.state().as_str(), wish), (state, Wish::Go), "{keys}");
    }
    for (keys, wish) in
        [("q", Wish::Quit), ("^c", Wish::Quit), ("/ ^c", Wish::Quit), ("^z", Wish::Suspend), ("^l", Wish::Redraw)]
    {
        assert_eq!(Seat::new(vec![lab()], 80, 6).press(keys), wish, "{keys}");
    }
}

#[test]
fn the_selection_follows_its_row_and_stays_in_place_without_it() {
    let mut seat = Seat::new(vec![lab()], 80, 6);
    seat.press("p j");
    assert_eq!(seat.view.position, 1);
    let edit = |seat: &mut Seat, change: fn(&mut Snapshot)| {
        change(Arc::make_mut(seat.hosts[0].snapshot.as_mut().unwrap()));
        seat.screen();
    };
    edit(&mut seat, |it| Arc::make_mut(&mut it.processes[1]).devices[0].memory_used_bytes = Some(90 * GIB).into());
    assert_eq!(seat.view.position, 0);
    edit(&mut seat, |it| drop(it.processes.remove(1)));
    assert_eq!(seat.view.position, 0);
    edit(&mut seat, |it| it.processes.clear());
    assert_eq!((seat.view.position, seat.shown.rows.len()), (0, 0));
}

#[test]
fn a_column_is_sorted_with_unknown_values_last() {
    let column = |keys: &str, name: &str| {
        let mut seat = Seat::new(vec![lab()], 200, 24);
        seat.press(keys);
        let position = seat.shown.columns.iter().position(|it| it.name == name).unwrap();
        seat.shown.rows.iter().map(|row| row.values[position].text.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(column("s s s s s", "UTIL"), "98% 31% 0% 0% ? ?");
    assert_eq!(column("s s s s s r", "UTIL"), "0% 0% 31% 98% ? ?");
    assert_eq!(column("s s s s s s s", "IDLE"), "2h5m busy    ");
    assert_eq!(column("s s s s s s s s", "OUTSIDE"), "1? 1 0 0 ? ?");
}

#[test]
fn a_device_without_a_seen_use_is_unused_for_at_least_the_measured_time() {
    let mut environment = environment("1", "alice", "training", "0", 0.0);
    environment["devices"][0]["last_active_timestamp_seconds"] = Value::Null;
    let gpu = gpu("NVIDIA H200", 0.0, 8, &["1"]);
    let mut seat = Seat::new(vec![host("gpu01", json!([gpu]), json!([environment]), json!([]))], 80, 6);
    let mut idle = |seconds: f64| {
        let account = json!([{"username": "alice", "index": "0", "device_seconds": {"idle": seconds}}]);
        let snapshot = Arc::make_mut(seat.hosts[0].snapshot.as_mut().unwrap());
        snapshot.counters.user_device_use = serde_json::from_value(account).unwrap();
        seat.screen();
        let position = seat.shown.columns.iter().position(|it| it.name == "IDLE").unwrap();
        seat.shown.rows[0].values[position].text.clone()
    };
    assert_eq!([idle(0.0), idle(50.0)], ["?", ">50s"]);
}

#[test]
fn the_screen_shows_who_holds_and_uses_each_device() {
    let mut seat = Seat::new(vec![lab()], 80, 24);
    for utilization in [Some(0.0), Some(0.3), None, Some(0.6), Some(1.0)] {
        let snapshot = Arc::make_mut(seat.hosts[0].snapshot.as_mut().unwrap());
        snapshot.devices[0].measurements.utilization_ratio = utilization;
        seat.history.record(&seat.hosts);
    }
    seat.against.line = Some("idle: rests for 2h; at 12:00 (in 19m) it is taken".to_owned());
    insta::assert_snapshot!("devices_80x24", seat.screen());
    seat.size = (120, 30);
    seat.hosts.push(dead());
    insta::assert_snapshot!("devices_120x30", seat.screen());
    seat.size = (20, 5);
    insta::assert_snapshot!("devices_20x5", seat.screen());
}

#[test]
fn each_table_and_page_has_a_screen() {
    let mut seat = Seat::new(vec![lab(), dead()], 100, 12);
    let mut screens = String::new();
    for keys in ["e", "u", "p", "h", "d enter", "?", "? t", "t !", "! / x x"] {
        seat.press(keys);
        screens += &format!("{}\n{}\n", seat.screen(), "-".repeat(100));
    }
    insta::assert_snapshot!("tables", screens);
}

#[test]
fn hostile_names_are_escaped_and_cut() {
    let hostile = "\x1b[2J\u{202e}\n名前名前名前".to_owned() + &"x".repeat(5_000);
    let mut lab = lab();
    let snapshot = Arc::make_mut(lab.snapshot.as_mut().unwrap());
    snapshot.devices[2].name = Some(hostile.clone());
    let environment = Arc::make_mut(&mut snapshot.environments[0]);
    (environment.name, environment.username) = (Some(hostile.clone()), hostile.clone());
    let process = Arc::make_mut(&mut snapshot.processes[1]);
    (process.comm, process.username) = (Some(hostile.clone()), Some(hostile.clone()));
    snapshot.collectors.get_mut("state").unwrap().error = Some(hostile.clone());
    lab.hostname = hostile;
    let mut seat = Seat::new(vec![lab, dead()], 80, 12);
    insta::assert_snapshot!("hostile_names", seat.screen());
    for keys in ["e", "u", "p", "h", "t", "d enter"] {
        seat.press(keys);
        assert!(!seat.screen().contains(['\x1b', '\u{202e}']), "{keys}");
    }
}

#[test]
fn without_devices_the_screen_says_why() {
    let mut empty = host("gpu01", json!([]), json!([]), json!([]));
    let snapshot = Arc::make_mut(empty.snapshot.as_mut().unwrap());
    let gpu = CollectorStatus { error: Some("the driver is not loaded".to_owned()), ..CollectorStatus::default() };
    snapshot.collectors.insert("gpu".to_owned(), gpu);
    insta::assert_snapshot!(Seat::new(vec![empty], 60, 7).screen(), @r"
    gpu01  11:41:00  1 trouble
    No GPU is known.
    gpu01: collector gpu: the driver is not loaded
    'genv doctor' checks the driver and the rest of a machine.
    ");
    insta::assert_snapshot!(Seat::new(Vec::new(), 60, 7).screen(), @r"
    genv top  reading…
    reading…
    ");
}

#[test]
fn without_a_list_of_the_devices_numbers_are_unknown() {
    let mut lab = lab();
    let snapshot = Arc::make_mut(lab.snapshot.as_mut().unwrap());
    snapshot.collectors.get_mut("gpu").unwrap().current = false;
    snapshot.devices.clear();
    let mut seat = Seat::new(vec![lab], 80, 6);
    for (keys, row) in [
        ("e", "alice|training|1|?|?|?|?|1+?|2h5m|12:41"),
        ("u", "alice|?|?|1+?|?|?|?|?"),
        ("h", "gpu01|up|?|?|?|?|?|?|550.54.15|"),
    ] {
        seat.press(keys);
        let values = seat.shown.rows[0].values.iter().map(|it| it.text.as_str());
        assert_eq!(values.collect::<Vec<_>>().join("|"), row);
    }
}

#[test]
fn a_mig_device_says_whether_its_users_hold_the_gpu() {
    let mut whole = gpu("NVIDIA A100-SXM4-80GB", 0.0, 0, &["1"]);
    whole["mig_parent"] = true.into();
    let devices = json!([whole, {"index": "0:0"}, {"index": "0:1"}]);
    let environments = json!([environment("1", "alice", "training", "0", NOW)]);
    let (of, outside) =
        (json!({"state": "environment", "eid": "1"}), json!({"state": "outside", "reason": "no_claim"}));
    let processes = json!([process(71, "alice", "0:0", &of), process(72, "eve", "0:1", &outside)]);
    let mut seat = Seat::new(vec![host("gpu01", devices, environments, processes)], 80, 6);
    seat.screen();
    let rows = seat.shown.rows.iter().map(|row| {
        let [index, _, held_by, environment, ..] = &row.values[..] else { panic!("{row:?}") };
        format!("{}|{}|{}", index.text, held_by.text, environment.text)
    });
    assert_eq!(rows.collect::<Vec<_>>(), ["0|alice|training", "0:0|alice|training", "0:1|eve, not held|"]);
}

#[test]
fn no_line_of_the_help_is_wider_than_80_columns() {
    for line in HELP.lines() {
        assert!(unicode_width::UnicodeWidthStr::width(line) <= 80, "{line}");
    }
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    for width in [1, 2, 3, 8, 20, 39] {
        for height in [1, 2, 3, 5, 8, 13] {
            let mut seat = Seat::new(vec![lab(), dead()], width, height);
            seat.against.line = Some("idle".to_owned());
            for keys in ["end s", "e", "u", "p", "h", "?", "t", "!", "/ x"] {
                seat.press(keys);
            }
        }
    }
}
