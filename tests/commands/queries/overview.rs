//! The overview on a terminal: `genv` without a command, and `genv devices`.

use anyhow::{Result, ensure};
use genv_tests::patience::NO_PATIENCE;
use genv_tests::root::FIRST_UID;
use serde_json::{Value, json};

use crate::queries::lab::{Lab, device, environment, own_environment};

/// A user without a name on any machine.
const BOB: u32 = FIRST_UID + 1;

/// The colours of what is free, doubtful and the caller's own.
const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const CYAN: &str = "\u{1b}[36m";

/// A machine with devices of several models and states, where Bob's processes are in no environment.
fn lab() -> Result<Lab> {
    let process = |pid: u32, device: u32, gibibytes: u32| {
        format!("{{pid: {pid}, user: bob, devices: [{{index: {device}, memory: {gibibytes}gi}}]}}")
    };
    let processes = [process(71, 0, 20), process(72, 2, 8), process(73, 2, 1)].join(", ");
    let lab = Lab::simulated(&format!(
        "devices: [{{utilization: 0.98}}, {{}}, {{name: NVIDIA GeForce RTX 3090, memory: 24gi, utilization: 0.07}}, \
         {{name: Tesla T4, memory: 15gi}}]\n  processes: [{processes}]\nusers: {{bob: {BOB}}}"
    ))?;
    lab.write(
        &[
            of_uid("e1", &json!("training"), 0),
            of_uid("e2", &Value::Null, BOB),
            of_uid("e3", &json!("fine tuning of a model with adapters"), BOB),
        ],
        &[
            device(0, &[("e1", None)]),
            device(1, &[("e2", Some("10gi")), ("e3", Some("10gi"))]),
            device(2, &[]),
            device(3, &[]),
        ],
    )?;
    Ok(lab)
}

fn of_uid(eid: &str, name: &Value, uid: u32) -> Value {
    let mut environment = environment(eid, name);
    environment["uid"] = json!(uid);
    environment
}

fn shown(lab: &Lab, columns: u32, line: &str) -> Result<String> {
    Ok(lab.on_a_terminal(&format!("stty cols {columns}; {line}"))?.replace('\r', ""))
}

#[test]
fn a_terminal_shows_a_line_for_each_device_with_its_holder_and_its_use() -> Result<()> {
    let lab = lab()?;
    let line = "genv devices --color never --timestamp";
    insta::assert_snapshot!(shown(&lab, 110, line)?, @r"
    GPU  MODEL             USER   ENVIRONMENT                       SINCE                MEMORY GiB  LOAD  OUTSIDE
    0    H100 80GB HBM3    root   training                          20/11/2026 12:00:00   20.0/80.0  98 %        1
    1    H100 80GB HBM3    54322  e2, fine tuning of a model with…  20/11/2026 12:00:00    0.0/80.0   0 %        0
    2    GeForce RTX 3090  54322  used, not held                    01/01/2026 00:00:00    9.0/24.0   7 %        2
    3    Tesla T4                 free                                                     0.0/15.0   0 %        0
    ");
    insta::assert_snapshot!(shown(&lab, 80, line)?, @r"
    GPU  MODEL    USER   ENVIRONMENT  SINCE                MEMORY GiB  LOAD  OUTSIDE
    0    H100 8…  root   training     20/11/2026 12:00:00   20.0/80.0  98 %        1
    1    H100 8…  54322  e2, fine t…  20/11/2026 12:00:00    0.0/80.0   0 %        0
    2    GeForc…  54322  used, not …  01/01/2026 00:00:00    9.0/24.0   7 %        2
    3    Tesla …         free                                0.0/15.0   0 %        0
    ");
    let ages = shown(&lab, 80, "genv devices --color never")?;
    let used = ages.lines().nth(3).unwrap_or_default();
    ensure!(used.contains("used, not held") && used.contains(" w  "), "{ages}");
    Ok(())
}

#[test]
fn genv_without_a_command_shows_the_overview_on_a_terminal_and_help_elsewhere() -> Result<()> {
    let lab = lab()?;
    let overview = shown(&lab, 80, "genv devices --color never")?;
    assert_eq!(shown(&lab, 80, "genv --color never")?, format!("{overview}genv: 'genv --help' lists the commands\n"));
    let output = lab.ask(&[])?;
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert_eq!(output.stdout, lab.genv("-h")?);
    Ok(())
}

#[test]
fn a_value_that_the_driver_does_not_report_is_a_question_mark_with_its_reason() -> Result<()> {
    let unsupported = "{memory: 40gi, faults: [{not_supported: [utilization, processes]}]}";
    let lab = Lab::simulated(&format!(
        "{{devices: [{{memory: 40gi, faults: [{{lost: true}}]}}, {unsupported}, {unsupported}]}}"
    ))?;
    let held = of_uid("e1", &Value::Null, BOB);
    lab.write(&[held], &[device(0, &[("e1", None)]), device(1, &[("gone", None)]), device(2, &[])])?;
    let line = "genv devices --color never --timestamp";
    insta::assert_snapshot!(shown(&lab, 100, line)?, @r"
    GPU  MODEL           USER   ENVIRONMENT  SINCE                MEMORY GiB  LOAD  OUTSIDE
    0    ?               54322  e1           20/11/2026 12:00:00      ?/40.0     ?        ?
    1    H100 80GB HBM3         not held                            0.0/40.0     ?        ?
    2    H100 80GB HBM3         not held                            0.0/40.0     ?        ?
    genv: the driver does not report any value of device 0
    genv: the driver does not report all processes and the load of devices 1, 2
    ");
    // The driver hangs.
    let lab = lab.variable(NO_PATIENCE.0, NO_PATIENCE.1);
    lab.simulate("{devices: [{count: 3, memory: 40gi}], faults: [{hang: all}]}")?;
    insta::assert_snapshot!(lab.on_a_terminal(line)?.replace('\r', ""), @r"
    GPU  MODEL  USER   ENVIRONMENT  SINCE                MEMORY GiB  LOAD  OUTSIDE
    0    ?      54322  e1           20/11/2026 12:00:00      ?/40.0     ?        ?
    1    ?             not held                              ?/40.0     ?        ?
    2    ?             not held                              ?/40.0     ?        ?
    genv: the use of the devices is unknown: the GPUs have not answered within 0.1 s: see whether 'nvidia-smi' works
    ");
    Ok(())
}

#[test]
fn mig_devices_have_lines_of_their_own() -> Result<()> {
    let lab = Lab::simulated(
        "{devices: [{memory: 40gi, mig: [{profile: 1g.5gb, memory: 5gi}, {profile: 2g.10gb, memory: 10gi}]}]}",
    )?;
    lab.write(&[], &[device(0, &[])])?;
    insta::assert_snapshot!(shown(&lab, 80, "genv devices --color never")?, @r"
    GPU  MODEL           USER  ENVIRONMENT  SINCE  MEMORY GiB  LOAD  OUTSIDE
    0    H100 80GB HBM3        free                  0.0/40.0     ?        0
    0:0  MIG 1g.5gb                                   0.0/5.0
    0:1  MIG 2g.10gb                                 0.0/10.0
    genv: the driver does not report the load of device 0
    ");
    Ok(())
}

#[test]
fn colours_mark_what_is_free_what_is_doubtful_and_what_the_caller_holds() -> Result<()> {
    let lab = lab()?;
    let colours = |line: &str| -> Result<[bool; 3]> {
        let shown = shown(&lab, 80, line)?;
        Ok([GREEN, YELLOW, CYAN].map(|it| shown.contains(it)))
    };
    let is_root = rustix::process::getuid().is_root();
    assert_eq!(colours("genv devices")?, [true, true, is_root]);
    assert_eq!(colours("genv devices --color never")?, [false; 3]);
    assert_eq!(colours("NO_COLOR=1 genv")?, [false; 3]);
    lab.write(&[own_environment("e1", &Value::Null)], &[device(0, &[("e1", None)])])?;
    assert_eq!(colours("genv")?, [false, true, true]);
    Ok(())
}

#[test]
fn programs_get_the_table_and_formats_as_before() -> Result<()> {
    let lab = lab()?;
    let table = lab.genv("devices --timestamp")?;
    ensure!(table.starts_with("ID  ENV ID  ENV NAME") && !table.contains("used"), "{table}");
    for line in ["devices ps --timestamp", "devices --format tui --timestamp"] {
        assert_eq!(lab.genv(line)?, table, "{line}");
    }
    let formats = "--format tui --timestamp --color never|--format csv --timestamp|--json|\
        query --query index eids total_memory attachments";
    for line in formats.split('|').map(|format| format!("devices {format}")) {
        assert_eq!(shown(&lab, 80, &format!("genv {line}"))?, lab.genv(&line)?, "{line}");
    }
    Ok(())
}

#[test]
fn who_answers_for_one_device_for_several_and_for_all() -> Result<()> {
    let lab = lab()?;
    let heads = |line: &str| -> Result<Vec<String>> {
        let shown = lab.genv(line)?;
        let heads = shown.lines().filter_map(|it| it.strip_prefix("Device "));
        Ok(heads.map(|it| it.chars().take(1).collect()).collect())
    };
    assert_eq!(heads("who")?, ["0", "1", "2", "3"]);
    assert_eq!(heads("who 2 0 2")?, ["2", "0"]);
    let parts = [lab.genv("who 2")?, lab.genv("who 0")?];
    assert_eq!(lab.genv("who 2 0")?, parts.join("\n"));
    let json = |line: &str| -> Result<Value> { Ok(serde_json::from_str(&lab.genv(line)?)?) };
    let (one, all) = (json("who 2 --json")?, json("who --json")?);
    assert_eq!((&one["index"], &all["devices"][2]), (&json!(2), &one));
    assert_eq!(json("who 2 3 --json")?["devices"][0], one);
    let output = lab.ask(&["who", "0", "9"])?;
    assert_eq!((output.code, output.stdout.as_str()), (4, ""));
    ensure!(output.stderr.contains("there is no device 9"), "{}", output.stderr);
    Ok(())
}

#[test]
fn the_end_of_a_lease_has_a_column_that_fits_80_columns() -> Result<()> {
    let lab = lab()?;
    let line = "genv devices --color never";
    ensure!(!shown(&lab, 80, line)?.contains("UNTIL"));
    let shown = shown(&lab, 80, &format!("genv exec --gpus 1 --for 26h -- {line}"))?;
    let lines: Vec<&str> = shown.lines().filter(|it| !it.contains("genv: ")).collect();
    ensure!(lines[0].contains("  SINCE  ") && lines[0].contains("  UNTIL  "), "{shown}");
    ensure!(lines.iter().all(|it| it.chars().count() <= 80), "{shown}");
    let leased = lines.iter().find(|it| it.starts_with('3'));
    ensure!(leased.is_some_and(|it| it.contains(':')), "{shown}");
    Ok(())
}
