//! Tests with recorded output in place of hosts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;

use genv_core::model::{Attribution, EccErrors, Process};
use proptest::prelude::*;

use super::*;
use crate::script::tests::is_for_every_login_shell;
use crate::session::CommandEnd;

/// Outputs of the commands of one poll, in order, and the text that the commands read.
struct Recorded {
    outputs: Mutex<Vec<Vec<u8>>>,
    read: Mutex<String>,
}

impl Commands for Recorded {
    async fn run(&self, _command: &str, stdin: &[u8], _limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        let text = String::from_utf8_lossy(stdin).into_owned();
        self.read.lock().unwrap().push_str(&text);
        Ok(CommandOutput {
            end: CommandEnd::Exited(0),
            stdout: self.outputs.lock().unwrap().remove(0),
            stderr: "sudo: a password is required\n".to_owned(),
        })
    }
}

fn poller(program: HostProgram, sudo: bool) -> Poller {
    Poller::new("gpu01", program, sudo, &CollectOptions::default(), Duration::from_secs(1))
}

fn poll(poller: &mut Poller, outputs: &[&[u8]]) -> (Result<Snapshot, HostFailure>, String) {
    let host = Recorded { outputs: Mutex::new(outputs.iter().map(|it| it.to_vec()).collect()), read: Mutex::default() };
    let snapshot = poll_host(poller, &host);
    (snapshot, host.read.into_inner().unwrap())
}

fn poll_host(poller: &mut Poller, host: &impl Commands) -> Result<Snapshot, HostFailure> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.build().unwrap().block_on(poller.poll(host))
}

/// The output of `poll.sh`.
fn poll_output(uid: u32, devices: &str, processes: &str, usage: Option<(&str, u32)>) -> Vec<u8> {
    let usage = usage.map_or_else(String::new, |(text, code)| format!("{text}\n#genv-remote usage {code}\n"));
    format!(
        "motd\n\n#genv-remote begin 0\ngpu01\n1795200000 +0130\n{uid}\n\n#genv-remote host 0\n{devices}\n#genv-remote \
         devices 0\n{processes}\n#genv-remote processes 0\n{usage}\n#genv-remote end 0\n"
    )
    .into_bytes()
}

const TWO: &str = "\
0, GPU-a, 550.163.01, 40960, 8192, 32768, 37, 12, 33, 72.50, 400.00, 1410, 1410, 1593, 1275, 30, 3, 1, 0x0000000000000005, Disabled, NVIDIA A100, 40GB
1, GPU-b, 550.163.01, 40960, 0, 40960, [N/A], [Not Supported], [N/A], [Unknown Error], ERR!, \
[N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]
";

const FACTS_OF_7: &[u8] = b"#genv-remote begin 0\nboot 1795000000 100\nprocess 7 1 5000 1001 no py\xff thon\n\
user 1001 alice\nprocess 1 0 1 0 no init\nuser 0 root\n\n#genv-remote facts 0\n";

/// A recorded output of nvidia-smi; `columns` selects the columns that `poll.sh` asks for.
fn recorded(name: &str, columns: &[usize]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nvidia-smi");
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(", ").collect();
        let fields = columns.iter().map(|column| {
            let field = fields.get(*column).copied().unwrap_or("[N/A]");
            field.trim_end_matches(" MiB").trim_end_matches(" %")
        });
        fields.collect::<Vec<_>>().join(", ") + "\n"
    };
    text.lines().skip(1).map(line).collect()
}

#[test]
fn every_login_shell_passes_the_scripts_on_unchanged() {
    is_for_every_login_shell(POLL);
    is_for_every_login_shell(FACTS);
}

#[test]
fn values_that_nvidia_smi_does_not_have_are_absent() {
    let output = poll_output(1000, TWO, "GPU-a, 7, 8192\nGPU-a, 7, [N/A]\nGPU-b, [N/A], [N/A]\n", None);
    let (snapshot, read) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
    let snapshot = snapshot.unwrap();
    assert_eq!(read, "p 7\n");
    assert_eq!(snapshot.timestamp_seconds, 1_795_200_000.0);
    let [first, second] = &snapshot.devices[..] else { panic!("{snapshot:#?}") };
    assert_eq!(first.measurements.memory_controller_busy_ratio, Some(0.12));
    assert_eq!(first.measurements.power_watts, Some(72.5));
    assert_eq!(first.measurements.energy_joules, None);
    let clocks = [("graphics", 1.41e9), ("memory", 1.593e9), ("sm", 1.41e9), ("video", 1.275e9)];
    let clocks = clocks.map(|(clock, hertz)| (clock.to_owned(), hertz));
    assert_eq!(*first.measurements.clocks_hertz, BTreeMap::from(clocks));
    assert_eq!(first.measurements.fan_speed_ratios, BTreeMap::from([(0, 0.3)]));
    assert_eq!(first.measurements.ecc_errors, EccErrors { corrected: Some(3), uncorrected: Some(1) });
    // It is idle, which is no reason, and has a limit of its power.
    let throttled = first.measurements.throttled.as_deref().into_iter().flatten();
    let throttled: Vec<&str> = throttled.filter(|(_, active)| **active).map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(throttled, ["sw_power_cap"]);
    assert!(first.processes_measured && !second.processes_measured);
    let error = "device 1: processes: nvidia-smi --query-compute-apps ended with exit code 0 and printed \
        'GPU-b, [N/A], [N/A]'";
    assert_eq!(snapshot.collectors["gpu"].error.as_deref(), Some(error));
    assert!(second.up && second.name.is_none());
    assert_eq!(second.measurements.utilization_ratio, None);
    assert_eq!(second.measurements.power_watts, None);
    assert!(second.measurements.clocks_hertz.is_empty() && second.measurements.fan_speed_ratios.is_empty());
    assert!(second.measurements.throttled.is_none() && second.measurements.ecc_errors == EccErrors::default());
    assert!(second.measurements.memory.is_some());
    let [process] = &snapshot.processes[..] else { panic!("{snapshot:#?}") };
    let Process { comm, username, devices, attribution, .. } = &**process;
    assert_eq!(comm.as_deref(), Some("py\u{fffd} thon"));
    assert_eq!(username.as_deref(), Some("alice"));
    assert_eq!(devices[0].memory_used_bytes, None);
    assert_eq!(attribution.state(), "outside");
}

#[test]
fn the_processes_of_a_device_are_known_only_by_a_whole_list() {
    for (apps, code, known, listed) in [
        ("", 0, [true, true], 0),
        ("GPU-a, 7, 1\n", 0, [true, true], 1),
        ("[Not Supported]\n", 0, [false, false], 0),
        ("[Insufficient Permissions], [Insufficient Permissions], [N/A]\n", 0, [false, false], 0),
        ("GPU-a, [Insufficient Permissions], [Insufficient Permissions]\n", 0, [false, true], 0),
        ("GPU-a, 7, 1\n[Not Supported]\n", 0, [false, false], 1),
        ("GPU-a, 7, 1\n", 15, [false, false], 0),
    ] {
        let output = String::from_utf8(poll_output(1000, TWO, apps, None)).unwrap();
        let output = output.replace("processes 0", &format!("processes {code}"));
        let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[output.as_bytes(), FACTS_OF_7]);
        let snapshot = snapshot.unwrap();
        let measured: Vec<bool> = snapshot.devices.iter().map(|it| it.processes_measured).collect();
        assert_eq!((&measured[..], snapshot.processes.len()), (&known[..], listed), "{apps:?} {code}");
    }
}

#[test]
fn recorded_output_of_four_driver_generations_is_parsed() {
    for generation in [470, 535, 550] {
        let devices = recorded(
            &format!("{generation}-query-gpu.txt"),
            &[0, 1, 9, 3, 4, 9, 5, 9, 6, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 2],
        );
        let processes = recorded(&format!("{generation}-query-compute-apps.txt"), &[0, 1, 3]);
        let output = poll_output(0, &devices, &processes, None);
        let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
        let snapshot = snapshot.unwrap();
        assert_eq!(snapshot.devices.len(), 2, "{generation}");
        assert_eq!(snapshot.devices[0].measurements.temperature_celsius, Some(33.0));
        // The driver 470 lists no processes, so that they are unknown.
        let measured = generation != 470;
        assert_eq!(snapshot.devices[0].processes_measured, measured, "{generation}");
        assert_eq!(snapshot.processes.len(), usize::from(measured), "{generation}");
    }
    let processes = recorded("580-query-compute-apps.txt", &[0, 1, 3]);
    let devices = TWO.replace("GPU-a", "GPU-12345678-1234-1234-1234-123456780000");
    let output = poll_output(0, &devices, &processes, None);
    let (snapshot, read) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
    assert_eq!(snapshot.unwrap().processes.len(), 4);
    assert_eq!(read, "p 614\np 621\np 628\np 631\n");
}

/// A host whose driver refuses a query for the first column that it does not have.
struct Driver {
    /// The columns that it does not have.
    lacks: &'static [&'static str],
    polls: Mutex<usize>,
}

impl Commands for Driver {
    async fn run(&self, command: &str, _stdin: &[u8], _limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        let value = |column: &str| match column {
            "index" => "0",
            "uuid" => "GPU-a",
            "driver_version" => "610.57",
            "memory.total" => "40960",
            "memory.used" | "memory.free" => "20480",
            "clocks_event_reasons.active" | "clocks_throttle_reasons.active" => "0x0000000000000008",
            _ => "30",
        };
        let asked = command.rsplit(' ').next().unwrap_or_default();
        let stdout = if command.contains("nvidia-smi") {
            *self.polls.lock().unwrap() += 1;
            match asked.split(',').find(|column| self.lacks.contains(column)) {
                None => poll_output(0, &asked.split(',').map(value).collect::<Vec<_>>().join(", "), "", None),
                Some(column) => {
                    let refusal = format!("Field \"{column}\" is not a valid field to query.\n");
                    let output = String::from_utf8(poll_output(0, &refusal, "", None)).unwrap();
                    output.replace("#genv-remote devices 0", "#genv-remote devices 2").into_bytes()
                }
            }
        } else {
            FACTS_OF_7.to_vec()
        };
        Ok(CommandOutput { end: CommandEnd::Exited(0), stdout, stderr: String::new() })
    }
}

#[test]
fn a_column_that_the_driver_does_not_have_is_left_out_and_not_asked_for_again() {
    let cases: [(&'static [&'static str], usize, Option<&str>); 3] = [
        (&[], 1, Some("610.57")),
        (&["driver_version"], 2, None),
        // The reasons have another name then.
        (&["fan.speed", "driver_version", "clocks_throttle_reasons.active", "name"], 5, None),
    ];
    for (lacks, polls, version) in cases {
        let host = Driver { lacks, polls: Mutex::default() };
        let mut poller = poller(HostProgram::NvidiaSmi, false);
        let snapshot = poll_host(&mut poller, &host).unwrap();
        assert_eq!(*host.polls.lock().unwrap(), polls, "{lacks:?}");
        assert_eq!(snapshot.driver_version.as_deref(), version, "{lacks:?}");
        let [device] = &snapshot.devices[..] else { panic!("{snapshot:#?}") };
        assert_eq!(device.measurements.temperature_celsius, Some(30.0), "{lacks:?}");
        assert_eq!(device.measurements.fan_speed_ratios.len(), usize::from(!lacks.contains(&"fan.speed")), "{lacks:?}");
        assert_eq!(device.measurements.throttled.as_ref().map(|it| it["hw_slowdown"]), Some(true), "{lacks:?}");
        poll_host(&mut poller, &host).unwrap();
        assert_eq!(*host.polls.lock().unwrap(), polls + 1, "{lacks:?}");
    }
    let host = Driver { lacks: &["utilization.gpu"], polls: Mutex::default() };
    let snapshot = poll_host(&mut poller(HostProgram::NvidiaSmi, false), &host).unwrap();
    let error = snapshot.collectors["gpu"].error.as_deref().unwrap_or_default();
    assert!(error.contains("utilization.gpu") && *host.polls.lock().unwrap() == 1, "{error}");
}

#[test]
fn values_are_absent_once_every_name_of_their_column_is_refused() {
    let mut columns = Columns::default();
    for (name, has_other_name) in
        [("clocks_throttle_reasons.active", true), ("clocks_event_reasons.active", false), ("fan.speed", false)]
    {
        let text = format!("Field \"{name}\" is not a valid field to query.\n");
        let refused = columns.refuse(Section { text: text.as_bytes(), code: 2 });
        assert_eq!((refused, columns.has_other_name(name)), (Some(name), has_other_name));
    }
}

#[test]
fn the_processes_of_a_gpu_in_mig_mode_are_not_known() {
    let output = poll_output(0, &TWO.replace("Disabled", "Enabled"), "GPU-a, 7, 1\n", None);
    let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
    let snapshot = snapshot.unwrap();
    let measured: Vec<bool> = snapshot.devices.iter().map(|it| it.processes_measured).collect();
    assert_eq!(measured, [false, true]);
    let error = snapshot.collectors["gpu"].error.as_deref().unwrap_or_default();
    assert!(error.contains("the GPU is in MIG mode"), "{error}");
}

#[test]
fn impossible_values_are_removed_and_named_and_confirm_no_list() {
    let devices = TWO.replace(" 37, 12, 33, 72.50,", " 150, 12, 33, -1.00,");
    let output = poll_output(0, &devices, "GPU-a, 7, 1\n", None);
    let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
    let snapshot = snapshot.unwrap();
    let device = &snapshot.devices[0];
    assert_eq!((device.measurements.utilization_ratio, device.measurements.power_watts), (None, None));
    assert!(!device.processes_measured);
    let named: Vec<&str> = snapshot.collectors["gpu"].withheld.iter().map(|it| it.value.as_str()).collect();
    assert!(named.contains(&"utilization") && named.contains(&"power"), "{named:?}");
}

#[test]
fn a_lost_device_is_not_up_and_keeps_its_name() {
    let mut poller = poller(HostProgram::NvidiaSmi, false);
    let lost = "Unable to determine the device handle for gpu 0000:0B:00.0: GPU is lost. Reboot the system\n\
                0, GPU-a, 550.1, [GPU is lost], [GPU is lost], 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, [GPU is lost]\n";
    poll(&mut poller, &[&poll_output(0, TWO, "", None), FACTS_OF_7]).0.unwrap();
    let (snapshot, _) = poll(&mut poller, &[&poll_output(0, lost, "", None), FACTS_OF_7]);
    let snapshot = snapshot.unwrap();
    assert!(snapshot.devices.iter().all(|device| !device.up));
    assert_eq!(snapshot.devices[0].name.as_deref(), Some("NVIDIA A100, 40GB"));
    assert_eq!(snapshot.devices[0].measurements.temperature_celsius, None);
}

const USAGE: &str = r#"{
  "processes": {"processes": [
    {"pid": 7, "used_gpu_memory": [{"index": 0, "gpu_memory": "8192mi"}], "eid": "e1"},
    {"pid": 8, "used_gpu_memory": [], "eid": null}
  ]},
  "envs": {"envs": [{"eid": "e1", "uid": 1001, "creation": "17/11/2026 00:00:00", "username": "alice",
    "config": {"name": "a\ud800b", "gpus": 1, "gpu_memory": null}, "pids": [1], "kernel_ids": []}]},
  "devices": {"devices": [{"index": 0, "total_memory": "40960mi",
    "attachments": [{"eid": "e1", "gpu_memory": "10gi", "time": "21/11/2026 00:00:00"}]}]}
}"#;

const FACTS_OF_8: &[u8] = b"#genv-remote begin 0\nboot 1795000000 100\nprocess 7 1 5000 1001 no py\n\
process 8 2 5000 1002 no x\nprocess 2 0 1 0 no other\nprocess 1 0 1 0 no init\nuser 1001 alice\n\n#genv-remote facts 0\n";

#[test]
fn environments_of_genv_1_count_and_a_process_with_an_unreadable_environ_is_unknown() {
    let apps = "GPU-a, 7, 1\nGPU-a, 8, 1\nGPU-a, 9, 1\n";
    let environment = Attribution::Environment { eid: "e1".to_owned() };
    // As root genv 1.x has read every environ; as another user a missing environment proves nothing.
    for (uid, sudo, reason) in [(0, false, "no_claim"), (1000, true, "no_claim"), (1000, false, "environ_unreadable")] {
        let output = poll_output(uid, TWO, apps, Some((USAGE, 0)));
        let (snapshot, read) = poll(&mut poller(HostProgram::Genv1, sudo), &[&output, FACTS_OF_8]);
        let snapshot = snapshot.unwrap();
        assert_eq!(read, "p 7\np 8\np 9\nm 1\nu 1001\n");
        let [inside, other, ended] = &snapshot.processes[..] else { panic!("{snapshot:#?}") };
        assert_eq!(inside.attribution, environment);
        assert!(
            matches!(&other.attribution, Attribution::Outside { reason: it } | Attribution::Unknown { reason: it } if it == reason),
            "{other:?}"
        );
        assert_eq!(ended.attribution.state(), "unknown");
        let environment = snapshot.environment("e1").unwrap();
        assert_eq!(environment.username, "alice");
        // The time zone of the host is one and a half hours ahead.
        assert_eq!(environment.created_timestamp_seconds, Some(1_794_868_200.0));
        assert_eq!(snapshot.devices[0].attachments[0].share_ratio, 0.25);
    }
}

#[test]
fn an_error_of_genv_1_leaves_the_devices_in_the_snapshot() {
    for (usage, code, expected) in [
        ("", 1, "ended with exit code 1 and printed 'sudo: a password is required'"),
        ("Traceback", 0, "cannot understand what 'genv usage snapshot' prints"),
        (&USAGE[..200], 0, "cannot understand"),
        ("{\"envs\":{\"envs\":[]},\"devices\":{\"devices\":[]}}", 0, "it has no 'processes'"),
        ("[]", 0, "it has no 'envs'"),
    ] {
        let output = poll_output(1000, TWO, "GPU-a, 7, 1\n", Some((usage, code)));
        let (snapshot, _) = poll(&mut poller(HostProgram::Genv1, true), &[&output, FACTS_OF_8]);
        let snapshot = snapshot.unwrap();
        let state = &snapshot.collectors["state"];
        let error = state.error.as_deref().unwrap_or_default();
        assert!(!state.success && error.contains(expected), "{error}");
        assert_eq!(snapshot.devices.len(), 2);
        assert_eq!(snapshot.processes[0].attribution.state(), "unknown");
    }
}

#[test]
fn the_error_of_sudo_has_the_line_of_sudoers_that_allows_genv_1() {
    let folder = tempfile::tempdir().unwrap();
    for (name, program) in [("genv", "/bin/true"), ("sudo", "/bin/false"), ("nvidia-smi", "/bin/false")] {
        symlink(program, folder.path().join(name)).unwrap();
    }
    let mut script = std::process::Command::new("sh");
    script.args(["-c", &script::command(POLL, &["yes", "yes"])]);
    script.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    let output = script.output().unwrap().stdout;
    let (snapshot, _) = poll(&mut poller(HostProgram::Genv1, true), &[&output, FACTS_OF_7]);
    let error = snapshot.unwrap().collectors["state"].error.clone();
    let expected = format!(" ALL=(root) NOPASSWD: {}/genv usage snapshot", folder.path().display());
    assert!(error.as_ref().is_some_and(|it| it.ends_with(&expected)), "{error:?}");
}

#[test]
fn an_incomplete_output_is_an_error() {
    let whole = poll_output(0, TWO, "", None);
    let cut = &whole[..whole.len() - 20];
    for output in [&b""[..], b"This account is not available.\n", cut, b"\xff\xff"] {
        let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[output, FACTS_OF_7]);
        let failure = snapshot.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains("a script for sh ended with status 0"), "{failure}");
    }
    let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&whole, b"no"]);
    assert_eq!(snapshot.unwrap_err().kind, FailureKind::Protocol);
}

#[test]
fn counters_continue_from_poll_to_poll() {
    let mut poller = poller(HostProgram::NvidiaSmi, false);
    let output = poll_output(0, TWO, "GPU-a, 7, 1\n", None);
    let mut seconds = Vec::new();
    for _ in 0..4 {
        let (snapshot, _) = poll(&mut poller, &[&output, FACTS_OF_7]);
        let counters = snapshot.unwrap().counters;
        let alice = counters.user_device_use.iter().find(|it| it.username == "alice");
        seconds.push(alice.and_then(|it| it.device_seconds.as_ref()).map(|it| it.outside));
    }
    let seconds: Vec<f64> = seconds.into_iter().flatten().collect();
    assert_eq!(seconds[0], 0.0);
    assert!(seconds.is_sorted() && seconds.last() > Some(&0.0), "{seconds:?}");
}

#[test]
fn an_output_of_a_hundred_megabytes_is_parsed() {
    let long = "x".repeat(100 << 20);
    let output = poll_output(0, &format!("{TWO}{long}\n"), &format!("GPU-a, 7, {long}\n"), None);
    let (snapshot, _) = poll(&mut poller(HostProgram::NvidiaSmi, false), &[&output, FACTS_OF_7]);
    assert_eq!(snapshot.unwrap().devices.len(), 2);
}

proptest! {
    #[test]
    fn no_output_causes_a_panic(
        devices in "[0-9, .\\[\\]A-Za-z%/\n-]{0,200}|\\PC{0,60}",
        processes in "[GPU0-9a-b, \n\\[\\]/-]{0,100}|\\PC{0,60}",
        usage in "\\PC{0,80}",
        facts in "[a-z0-9 \n-]{0,200}|(process|boot|user)( [0-9]{1,20}){0,7}",
    ) {
        let output = poll_output(0, &devices, &processes, Some((&usage, 0)));
        let facts = format!("{facts}\n#genv-remote facts 0\n");
        let _ = poll(&mut poller(HostProgram::Genv1, false), &[&output, facts.as_bytes()]);
    }
}
