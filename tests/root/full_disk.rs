//! The state on a real file system that is full, or mounted read-only: only root can mount one.

use anyhow::{Result, ensure};
use genv_tests::patience::output;
use genv_tests::root::require_root;
use genv_tests::shell::{Account, Shell};

/// Runs in a shell that alone sees `~/disk`, in the environment `e` with device 0.
fn on_a_small_disk(script: &str) -> Result<(String, String)> {
    require_root();
    let account = Account::new()?;
    let setup = Shell::Bash.setup();
    let script = format!(
        "set -e
        mkdir disk
        mount -t tmpfs -o size=40k,mode=777 tmpfs disk
        export GENV_TMPDIR=~/disk/state
        {setup}
        genv activate --id e --gpus 1 --name before
        set +e
        files() {{ cat disk/state/*.json; }}
        # Each line that changes something fails, changes nothing, and leaves nothing behind.
        all_fail() {{
            before=$(files)
            visible=$CUDA_VISIBLE_DEVICES
            while read -r line; do
                genv $line
                echo \"$? genv $line\"
                [ \"$(files)\" = \"$before\" ] || echo \"changed by $line: $(files)\"
                [ \"$CUDA_VISIBLE_DEVICES\" = \"$visible\" ] || echo \"$line shows $CUDA_VISIBLE_DEVICES\"
            done <<'LINES'
config name other
attach --count 2
detach
deactivate
exec -- true
envs config --eid e name --name other
envs activate --eid f --uid 0 --pid 1
devices attach --eid e --count 2
devices detach --eid e
LINES
            ls -A disk/state
            for question in status envs devices 'devices find --eid e' doctor; do
                genv $question >/dev/null
                echo \"$? genv $question\"
            done
        }}
        {script}"
    );
    let mut command = account.command("unshare")?;
    let done = output(command.args(["--mount", "bash", "--norc", "-c", &script]))?;
    let said = String::from_utf8(done.stderr)?;
    ensure!(done.status.success(), "{said}");
    Ok((String::from_utf8(done.stdout)?, said))
}

const FAIL: &str = "1 genv config name other
1 genv attach --count 2
1 genv detach
1 genv deactivate
1 genv exec -- true
1 genv envs config --eid e name --name other
1 genv envs activate --eid f --uid 0 --pid 1
1 genv devices attach --eid e --count 2
1 genv devices detach --eid e
genv-confirmed-0.json
genv.lock
state-copy.json
state.json
0 genv status
0 genv envs
0 genv devices
0 genv devices find --eid e
1 genv doctor
";

#[test]
fn on_a_full_or_read_only_disk_nothing_is_lost_and_all_goes_on() -> Result<()> {
    for (spoil, mend, reason) in [
        (
            "head -c 1000000 /dev/zero >disk/fill 2>/dev/null",
            "rm disk/fill",
            "No space left on device (os error 28): make room on its file system",
        ),
        (
            "mount -o remount,ro disk",
            "mount -o remount,rw disk",
            "mounted read-only: set GENV_TMPDIR to another directory",
        ),
    ] {
        let (printed, said) = on_a_small_disk(&format!(
            "{spoil}
            all_fail
            {mend}
            genv config name after && genv attach --count 2 && genv deactivate && genv devices find --eid e
            genv doctor >/dev/null && echo well"
        ))?;
        assert_eq!(printed, format!("{FAIL}\nwell\n"), "{said}");
        let is_right = |line: &str| line.starts_with("genv: cannot write ") && line.contains(reason);
        ensure!(said.lines().count() == 9 && said.lines().all(is_right), "{said}");
    }
    Ok(())
}
