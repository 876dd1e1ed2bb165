//! The systemd unit of the enforcer, as systemd's own tools judge it, and what its protections leave visible.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{is_alive, sleeper, victim};
use genv_tests::patience::{output, until};
use genv_tests::process::copy_program;

const UNIT: &str = "genv-enforcer.service";

/// What peers of the same kind reach, rounded up.
const MOST_EXPOSURE: f64 = 2.0;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

fn analyze(words: &[&str]) -> Result<String> {
    let mut command = Command::new("systemd-analyze");
    let output = output(command.args(["--no-pager"]).args(words))?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "systemd-analyze {words:?}: {said}");
    Ok(said)
}

#[test]
fn promise_19_the_exposure_of_the_unit_is_at_most_2_with_the_driver_and_terminals_allowed()
-> Result<()> {
    let unit = packaging().join("systemd").join(UNIT);
    let said = analyze(&["security", "--offline=true", &unit.display().to_string()])?;
    let level = said.split_once("Overall exposure level for genv-enforcer.service: ");
    let level = level.and_then(|(_, rest)| rest.split_whitespace().next());
    let exposure: f64 = level.with_context(|| said.clone())?.parse()?;
    ensure!(exposure <= MOST_EXPOSURE, "{exposure}: {said}");
    let text = fs::read_to_string(&unit)?;
    for device in ["char-nvidia* rw", "char-pts w", "char-tty w"] {
        ensure!(
            text.contains(&format!("DeviceAllow={device}\n")),
            "{device}"
        );
    }
    let capabilities = "CAP_KILL CAP_SYS_PTRACE CAP_DAC_READ_SEARCH\n";
    for set in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        ensure!(text.contains(&format!("{set}={capabilities}")), "{set}");
    }
    Ok(())
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() -> Result<()> {
    let folder = tempfile::tempdir()?;
    copy_program("genv-enforcer", &folder.path().join("genv-enforcer"))?;
    for name in [UNIT, "genv-enforcer.socket"] {
        let text = fs::read_to_string(packaging().join("systemd").join(name))?;
        let installed = folder.path().display().to_string();
        fs::write(
            folder.path().join(name),
            text.replace("/usr/bin", &installed),
        )?;
    }
    let unit = folder.path().join(UNIT);
    let said = analyze(&["verify", "--man=no", &unit.display().to_string()])?;
    let ours: Vec<_> = said.lines().filter(|line| line.contains("genv")).collect();
    ensure!(ours.is_empty(), "{ours:?}");
    Ok(())
}

/// The unit's kind of user, with its three capabilities and no others.
#[test]
fn with_its_user_and_capabilities_it_ends_processes_of_others() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let program = folder.path().join("genv-enforcer");
    copy_program("genv-enforcer", &program)?;
    let process = sleeper(&[])?;
    let service = victim() + 1;
    let state = folder.path().join("state");
    fs::create_dir(&state)?;
    std::os::unix::fs::chown(&state, Some(service), Some(service))?;
    fs::write(
        folder.path().join("scenario.yaml"),
        format!(
            "version: 1\nhosts:\n- devices: [{{}}]\n  processes: [{{pid: {}, devices: [{{index: 0, memory: 1gi}}]}}]\n",
            process.pid()
        ),
    )?;
    fs::write(
        folder.path().join("enforcer.yaml"),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\n\
         rules: [{kind: non-env-processes, action: terminate, for: 0s, warn: []}]\n",
    )?;
    let capabilities = "-all,+kill,+sys_ptrace,+dac_read_search";
    let mut command = Command::new("setpriv");
    command
        .args(["--clear-groups", "--no-new-privs"])
        .arg(format!("--reuid={service}"))
        .arg(format!("--regid={service}"))
        .args(["inh", "ambient"].map(|set| format!("--{set}-caps={capabilities}")))
        .arg(format!("--bounding-set={capabilities}"))
        .arg(&program)
        .args(["run", "--once", "--config=enforcer.yaml"])
        .args(["--gpu.scenario=scenario.yaml", "--state-directory=state"])
        .env("GENV_TMPDIR", folder.path().join("genv"))
        .env_remove("GENV_DEVICES")
        .env_remove("GENV_NVML_LIBRARY")
        .current_dir(folder.path());
    let output = output(&mut command)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(output.status.success(), "{said}");
    ensure!(!said.contains("without CAP_"), "{said}");
    until("it has ended", || Ok(!is_alive(process.pid()))).context(said)?;
    Ok(())
}
