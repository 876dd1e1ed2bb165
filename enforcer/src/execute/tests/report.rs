use super::super::report::{Report, ReportAction};
use super::*;

fn report(pids: &[u32], environment: (&str, u32)) -> Report {
    let processes: Vec<Value> = pids
        .iter()
        .map(|pid| json!({"pid": pid, "used_gpu_memory": [{"index": 0, "gpu_memory": "100mi"}], "eid": null}))
        .collect();
    let (eid, uid) = environment;
    let environment = json!({"eid": eid, "uid": uid, "creation": "20/11/2026 12:00:00", "username": "alice",
        "config": {"name": null, "gpu_memory": null, "gpus": null}, "pids": [4711], "kernel_ids": []});
    let detach = json!({"0": {"envs": [environment]}});
    let report = json!({"terminate": {"processes": processes}, "detach": detach});
    Report::parse(report.to_string().as_bytes()).unwrap()
}

#[test]
fn promise_06_a_report_ends_nobody_who_is_out_of_reach_or_is_not_what_it_says() {
    let mut member = Victim::new();
    let mut inside = Victim::claiming("E");
    let mut off_the_device = Victim::new();
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
    let parent = parent.get().cast_unsigned();
    let ended = Victim::new().pid();
    let stage = Stage::new(&[&inside]);
    stage.gpu_use.lock().unwrap().insert(off_the_device.pid(), [1].into());
    for pid in [1, parent] {
        stage.gpu_use.lock().unwrap().insert(pid, [0].into());
    }
    stage.environment("E", member.target().uid, member.pid());
    let pids = [ended, u32::MAX, 0, inside.pid(), off_the_device.pid(), parent, 1];
    let report = report(&pids, ("E", STRANGER + 1));
    let (_, actions) = stage.executor().execute_report(&report, &BTreeSet::new());
    let expected = [
        ("it ended by itself", false),
        ("it ended by itself", false),
        ("it ended by itself", false),
        ("not in the same environment", true),
        ("does not use the device", true),
        (of_parent(), false),
        ("pid 1 is never ended", false),
        ("another user's", true),
    ];
    assert_eq!(actions.len(), expected.len());
    for (action, (part, again)) in actions.iter().zip(expected) {
        is_refusal(&action.outcome, part, again);
    }
    let settled: Vec<bool> = actions.iter().map(ReportAction::is_settled).collect();
    assert_eq!(settled, [true, true, true, false, false, false, false, false]);
    for victim in [&mut member, &mut inside, &mut off_the_device] {
        assert!(victim.runs());
    }
    assert!(stage.attached());
    // A refusal of the same process is not audited again: in a container the parent may be the first process.
    let audited = if parent == 1 { 7 } else { 8 };
    assert_eq!(stage.results(), vec!["refused"; audited]);
}

#[test]
fn what_is_no_report_is_refused_as_a_whole() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"terminate": {"processes": [{"pid": -1, "used_gpu_memory": [], "eid": null}]}, "detach": {}}"#,
        r#"{"terminate": {"processes": []}, "detach": {"x": {"envs": []}}}"#,
    ] {
        let error = Report::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the report: "), "{error}");
    }
}
