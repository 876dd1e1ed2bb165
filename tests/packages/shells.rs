//! genv in shells of a machine where it is installed for everybody.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::Machine;

use crate::{DEB, as_user, boot, install};

const MARK: &str = "tmp/genv-was-started";

/// A machine where it is installed, and where starting the program leaves [`MARK`].
fn installed() -> Result<Machine> {
    let machine = boot()?;
    let said = install(&machine, DEB)?;
    let stub = "usr/local/bin/genv";
    machine.write(stub, &format!("#!/bin/sh\n: >>/{MARK}\nexec /usr/bin/genv \"$@\"\n"))?;
    fs::set_permissions(machine.path(stub), fs::Permissions::from_mode(0o755))?;
    // What the package says about zsh, done as it says it.
    let advice = said.lines().find_map(|line| line.split_once("Add to /etc/zsh/zshrc: "));
    let (_, line) = advice.with_context(|| said.clone())?;
    machine.run(&["bash", "-c", "echo \"$0\" >>/etc/zsh/zshrc", line])?;
    // A new user of zsh is asked questions without it.
    as_user(&machine, &["touch", ".zshrc"])?;
    Ok(machine)
}

/// Each kind of shell: the program, and how it is told to be interactive, login, both, or a script's login shell.
const SHELLS: [(&str, &[&str]); 3] =
    [("bash", &["-ic", "-lic", "-lc"]), ("zsh", &["-ic", "-lic"]), ("fish", &["-c", "-ic", "-lic", "-lc"])];

/// Runs a script in each kind of shell. Each must print all of this.
fn in_each(machine: &Machine, script: &str, printed: &[&str]) -> Result<()> {
    for (shell, kinds) in SHELLS {
        for kind in kinds {
            let words = ["env", "PATH=/usr/local/bin:/usr/bin", "GENV_DEVICES=2", "USER=alice", shell, kind, script];
            let said = as_user(machine, &words).with_context(|| format!("{shell} {kind}"))?;
            for line in printed {
                ensure!(said.contains(line), "{shell} {kind}: {line}: {said}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_kind_of_shell_has_genv_and_starts_no_program_until_it_is_used() -> Result<()> {
    let machine = installed()?;
    in_each(&machine, "true", &[])?;
    ensure!(!machine.path(MARK).exists(), "genv was started");
    in_each(
        &machine,
        "genv activate --id own --gpus 1 --no-prompt && echo \"in:$GENV_ENVIRONMENT_ID,\" && \
         echo \"devices:$CUDA_VISIBLE_DEVICES,\" && genv deactivate && echo \"out:$GENV_ENVIRONMENT_ID,\"",
        &["in:own,", "devices:0,", "out:,"],
    )?;
    ensure!(machine.path(MARK).exists(), "another genv was started");
    // A shell that is started in an environment joins it at once.
    in_each(
        &machine,
        "genv activate --no-prompt >/dev/null; bash -ic 'echo bash:$(type -t __genv_call)'; \
         zsh -ic 'echo zsh:$(whence -w __genv_call)'; fish -ic 'echo fish:(type -t __genv_call)'",
        &["bash:function", "zsh:__genv_call: function", "fish:function"],
    )?;

    // Commands are completed on the first Tab.
    let bash = "_completion_loader genv; COMP_WORDS=(genv act); COMP_CWORD=1; COMP_TYPE=9; \
                \"$(complete -p genv | sed 's/.* -F \\([^ ]*\\) .*/\\1/')\" genv act genv; echo \"${COMPREPLY[@]}\"";
    let zsh = "autoload -U compinit; compinit -u -D; zmodload zsh/zpty; zpty tab zsh -i; \
               zpty -w tab 'autoload -U compinit; compinit -u -D; PS1=; echo rea\"\"dy'; zpty -r -m tab x '*ready*'; \
               zpty -w -n tab $'genv activa\\t --help | head -n 1\\n'; zpty -r -m tab said '*environment*' && echo \"$said\"";
    let fish = "complete --do-complete 'genv act'";
    for (shell, script) in [("bash", bash), ("zsh", zsh), ("fish", fish)] {
        let words = ["env", "PATH=/usr/bin", "TERM=dumb", shell, "-ic", script];
        let said = as_user(&machine, &words)?;
        ensure!(said.contains("activate"), "{shell}: {said}");
    }
    Ok(())
}
