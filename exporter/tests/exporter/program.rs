//! The program's command line: accepted values, and refusals.

use assert_cmd::Command;

fn exporter(arguments: &[&str]) -> (i32, String) {
    let output = Command::cargo_bin("genv-exporter").unwrap().env_clear().args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn every_wrong_value_is_refused_with_a_correct_one() {
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
        let (code, message) = exporter(&[flag]);
        assert_eq!(code, 2, "{flag}: {message}");
        let message = message.split("\n\nFor more").next().unwrap();
        all += &format!("{message}\n\n");
    }
    let long = format!("--hostname={}", "x".repeat(254));
    assert_eq!(exporter(&[&long]).0, 2);
    insta::assert_snapshot!(all);
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    for (arguments, words) in [
        (&["--gpu.source=nvml", "--gpu.scenario=x"][..], "choose --gpu.source=simulated"),
        (&["--gpu.source=simulated", "--gpu.nvml-library=x"], "choose --gpu.source=nvml"),
        (&["--interval=1m", "--snapshot.max-age=30s"], "--snapshot.max-age=30s is shorter than --interval=60s"),
        (&["--host=gpu01", "--gpu.source=nvml"], "is for this machine"),
        (&["--hostfile=hosts", "--no-collector.state"], "is for this machine"),
        (&["extra"], "unrecognized subcommand 'extra'"),
    ] {
        let (code, message) = exporter(arguments);
        assert_eq!(code, 2, "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}

#[test]
fn a_port_in_use_and_a_missing_web_configuration_are_failures_that_name_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, message) = exporter(&[&format!("--web.listen-address={address}")]);
    assert_eq!(code, 1, "{message}");
    insta::assert_snapshot!(message.replace(&address, "ADDRESS"), @"genv-exporter: cannot listen on ADDRESS: Address already in use (os error 98). Another program holds this port ('ss -ltnp' shows it): stop it, or choose another port with --web.listen-address.");
    let (code, message) = exporter(&["--web.listen-address=127.0.0.1:0", "--web.config.file=/nowhere/web.yml"]);
    assert_eq!(code, 1, "{message}");
    insta::assert_snapshot!(message, @"genv-exporter: cannot read the web configuration file /nowhere/web.yml: No such file or directory (os error 2). Name a readable one with --web.config.file, or leave the flag out");
}

#[test]
fn a_wrong_environment_variable_is_wrong_usage() {
    let mut command = Command::cargo_bin("genv-exporter").unwrap();
    command.env_clear().env("GENV_DEVICES", "many").arg("--web.listen-address=127.0.0.1:0");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"genv-exporter: GENV_DEVICES is 'many', which is not a number of devices: set it to a number from 0 to 1024, or unset it");
}

#[test]
fn the_version_has_revision_and_compiler() {
    let (code, version) = exporter(&["--version"]);
    assert_eq!(code, 0);
    let expected = format!("genv-exporter {} (revision ", env!("CARGO_PKG_VERSION"));
    assert!(version.starts_with(&expected) && version.contains(", rustc 1."), "{version}");
}
