//! The tarball, as a user without root.

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, USER};
use genv_tests::patience::until;

use crate::{TARBALL, as_user, boot, driver_is_missed, root_is};

fn unpacked() -> Result<Machine> {
    let machine = boot()?;
    let unpack = format!("mkdir genv && tar -xzf {TARBALL} -C genv --strip-components=1");
    bash(&machine, &unpack)?;
    Ok(machine)
}

fn bash(machine: &Machine, script: &str) -> Result<String> {
    as_user(machine, &["bash", "-c", script])
}

/// Runs its script; whether it succeeded, and what was said.
fn install(machine: &Machine, arguments: &str) -> Result<(bool, String)> {
    let script = format!("genv/install.sh {arguments} 2>&1; echo ended with $?");
    let said = bash(machine, &script)?;
    Ok((said.ends_with("ended with 0\n"), said))
}

fn states(machine: &Machine) -> Result<Vec<f64>> {
    let scrape = machine.scrape(9820)?;
    let states = ["environment", "outside", "unknown"];
    states.iter().map(|state| scrape.value("genv_processes", &[("state", state)])).collect()
}

#[test]
fn it_needs_no_root_and_says_what_it_cannot_do() -> Result<()> {
    let machine = unpacked()?;
    let (done, said) = install(&machine, "")?;
    ensure!(done, "{said}");
    for line in [
        "is installed in /home/alice/.local",
        "/home/alice/.local/bin is not on PATH",
        "eval \"$(genv shell --init)\"",
        "those of others it calls unknown",
        "can end your own processes and no others",
    ] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    driver_is_missed(&said)?;
    // So it is, with the line that it names.
    let script = "export PATH=$HOME/.local/bin:$PATH GENV_DEVICES=2; eval \"$(genv shell --init)\"; \
                  genv activate --gpus 1 && command -v nvidia-smi && echo devices:$CUDA_VISIBLE_DEVICES";
    let said = bash(&machine, script)?;
    ensure!(said.contains("/home/alice/.local/lib/genv/shims/nvidia-smi") && said.contains("devices:0"), "{said}");

    let genv = format!("/home/{USER}/.local/bin/genv");
    let root = format!("/home/{USER}/.local/lib/genv");
    root_is(|words| as_user(&machine, words), &genv, &root)?;
    let words = [&genv, "exec", "--name", "training", "--", "sleep", "1000000"];
    let member = machine.start("member", &words, "sleep")?;
    machine.run(&["systemd-run", "--quiet", "--unit=other", "sleep", "1000000"])?;
    let other = machine.main_pid("other")?;
    machine.use_devices(&[member, other])?;
    machine.start("exporter", &[&format!("{genv}-exporter")], "genv-exporter")?;
    let mut seen = String::new();
    until("other users' processes are unknown", || {
        let states = states(&machine);
        seen = format!("{states:?}");
        Ok(states.is_ok_and(|states| states == [1.0, 0.0, 1.0]))
    })
    .with_context(|| format!("{seen}: {}", machine.log("exporter")))?;
    Ok(())
}

#[test]
fn it_is_installed_over_an_older_one_finished_after_an_interruption_and_removed_without_a_trace() -> Result<()> {
    let machine = unpacked()?;
    bash(&machine, "mkdir -p .local/bin && echo mine >.local/bin/mine")?;
    // A version that had a file more, one that is running, and a folder with a space.
    bash(&machine, "touch 'genv/share/genv/of an older version'")?;
    let (done, said) = install(&machine, "")?;
    ensure!(done, "{said}");
    let genv = format!("/home/{USER}/.local/bin/genv");
    let member = machine.start("member", &[&genv, "exec", "--", "sleep", "1000000"], "sleep")?;
    bash(&machine, "rm 'genv/share/genv/of an older version'")?;
    // Killed when the first program is to take the place of the older one.
    let stub = "#!/bin/sh\ncase $4 in */bin/*) kill -KILL $PPID ;; esac\nexec /usr/bin/mv \"$@\"\n";
    machine.write("home/alice/stub/mv", stub)?;
    machine.run(&["chmod", "755", "/home/alice/stub/mv"])?;
    let interrupt = || {
        let said = bash(&machine, "PATH=$HOME/stub:$PATH genv/install.sh; echo ended with $?")?;
        ensure!(said.ends_with("ended with 137\n"), "{said}");
        as_user(&machine, &[".local/bin/genv", "--version"])
    };
    interrupt()?;
    let (done, said) = install(&machine, "")?;
    ensure!(done, "{said}");
    let script =
        "for part in bin lib share; do diff --recursive --no-dereference genv/$part .local/$part || true; done";
    let found = bash(&machine, script)?;
    ensure!(found == "Only in .local/bin: mine\nOnly in .local/share/genv: installed\n", "{found}");
    ensure!(machine.is_alive(member), "it has ended");

    bash(&machine, "touch 'genv/share/genv/of a newer version'")?;
    interrupt()?;
    let remove = "sh .local/share/genv/install.sh --uninstall --prefix=$HOME/.local; find .local ! -type d";
    let left = bash(&machine, remove)?;
    ensure!(left == ".local/bin/mine\n", "{left}");
    let (done, said) = install(&machine, "--uninstall")?;
    ensure!(!done && said.contains("nothing was installed in /home/alice/.local"), "{said}");
    Ok(())
}

#[test]
fn where_it_cannot_be_installed_it_says_why() -> Result<()> {
    let machine = unpacked()?;
    for (arguments, line) in [
        ("--prefix=/usr/local", "cannot install into /usr/local: you may not write there. Name another folder"),
        ("--prefix=here", "cannot install into 'here': that is no absolute path"),
        ("--prefix", "cannot install into ''"),
        ("--prefer", "there is no option '--prefer'"),
    ] {
        let (done, said) = install(&machine, arguments)?;
        ensure!(!done && said.contains(line), "{arguments}: {said}");
    }
    // Another program of that name is no older version.
    bash(&machine, "mkdir -p other/bin && echo 1.x >other/bin/genv")?;
    let (done, said) = install(&machine, "--prefix=$HOME/other")?;
    ensure!(!done && said.contains("/home/alice/other/bin/genv is there, and is none of this genv's"), "{said}");
    let left = bash(&machine, "find other ! -type d; cat other/bin/genv")?;
    ensure!(left == "other/bin/genv\n1.x\n", "{left}");
    // The machine's loader is the judge: the program asks it for a glibc that no machine has.
    let script = "sed -i 's/GLIBC_2\\.2\\.5/GLIBC_9.9.9/' genv/bin/genv";
    bash(&machine, script)?;
    let (done, said) = install(&machine, "")?;
    ensure!(
        !done
            && said.contains("version `GLIBC_9.9.9' not found")
            && said.contains("it needs glibc 2.")
            && said.contains("this machine has glibc 2."),
        "{said}"
    );
    ensure!(!machine.path("home/alice/.local").exists(), "something was installed");
    Ok(())
}
