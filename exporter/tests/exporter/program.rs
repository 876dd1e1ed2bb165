//! The program's command line: what it accepts, and how it refuses.

use assert_cmd::Command;

fn exporter(arguments: &[&str]) -> (i32, String) {
    let output = Command::cargo_bin("genv-exporter")
        .unwrap()
        .env_clear()
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[test]
fn every_wrong_value_is_refused_with_what_to_write() {
    let mut all = String::new();
    for flag in [
        "--interval=abc",
        "--interval=10",
        "--interval=1ms",
        "--interval=2h",
        "--snapshot.max-age=-1s",
        "--snapshot.max-age=5s",
        "--web.listen-address=9820",
        "--web.listen-address=::1:9820",
        "--web.telemetry-path=metrics",
        "--web.telemetry-path=/snapshot",
        "--web.max-requests=-1",
        "--web.config.file=",
        "--gpu.source=amd",
        "--gpu.scenario=",
        "--hostname=",
        "--hostname=a\nb",
        "--collector.processes.limit=many",
        "--collector.cpu",
        "--accounting.busy-above=5",
        "--accounting.busy-above=NaN",
        "--usernames=nick",
        "--log.level=loud",
        "--log.format=xml",
    ] {
        let (code, answer) = exporter(&[flag]);
        assert_eq!(code, 2, "{flag}: {answer}");
        let answer = answer.split("\n\nFor more").next().unwrap();
        all += &format!("{answer}\n\n");
    }
    let long = format!("--hostname={}", "x".repeat(254));
    assert_eq!(exporter(&[&long]).0, 2);
    insta::assert_snapshot!(all);
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (arguments, words) in [
        (
            &["--gpu.source=nvml", "--gpu.scenario=x"][..],
            "choose --gpu.source=simulated",
        ),
        (
            &["--gpu.source=simulated", "--gpu.nvml-library=x"],
            "choose --gpu.source=nvml",
        ),
        (
            &["--interval=1m"],
            "--snapshot.max-age=30s is shorter than --interval=60s",
        ),
        (&["extra"], "unexpected argument 'extra'"),
    ] {
        let (code, answer) = exporter(arguments);
        assert_eq!(code, 2, "{arguments:?}: {answer}");
        assert!(answer.contains(words), "{arguments:?}: {answer}");
    }
}

#[test]
fn the_help_begins_with_a_verb_and_shows_an_example() {
    let (code, help) = exporter(&["--help"]);
    assert_eq!(code, 0);
    insta::assert_snapshot!(help);
}

#[test]
fn the_version_tells_from_what_it_was_built() {
    let (code, version) = exporter(&["--version"]);
    assert_eq!(code, 0);
    let expected = format!("genv-exporter {} (revision ", env!("CARGO_PKG_VERSION"));
    assert!(
        version.starts_with(&expected) && version.contains(", rustc 1."),
        "{version}"
    );
}
