use std::collections::BTreeMap;

use super::*;

type Variables = BTreeMap<String, OsString>;

fn variables(pairs: &[(&str, &str)]) -> Variables {
    let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into()));
    owned.collect()
}

fn apply(variables: &mut Variables, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Set(name, value) => {
                variables.insert((*name).to_owned(), value.clone());
            }
            Change::Unset(name) => {
                variables.remove(*name);
            }
            Change::Prompt(_) | Change::Watch(_) => {}
        }
    }
}

const SHIMS: &str = "/opt/genv/shims";

fn change(variables: &mut Variables, environment: &ShellEnvironment<'_>, occasion: Occasion) -> Vec<Change> {
    let changes = show(|name| variables.get(name).cloned(), environment, Some(SHIMS.into()), occasion);
    apply(variables, &changes);
    changes
}

fn enter(variables: &mut Variables, environment: &ShellEnvironment<'_>) {
    change(variables, environment, Occasion::Enter { prompt: true });
}

fn refresh(variables: &mut Variables, environment: &ShellEnvironment<'_>) -> Vec<Change> {
    change(variables, environment, Occasion::Command)
}

fn leave(variables: &mut Variables) {
    let changes = hide(|name| variables.get(name).cloned());
    apply(variables, &changes);
}

const DETACHED: ShellEnvironment<'_> =
    ShellEnvironment { eid: "42", name: None, gpus: None, gpu_memory: None, devices: &[], lease_end: None };

fn attached() -> ShellEnvironment<'static> {
    ShellEnvironment {
        name: Some("my env"),
        gpus: Some(2),
        gpu_memory: Some(MemoryAmount::from_file("4g").unwrap()),
        devices: &[0, 3],
        ..DETACHED
    }
}

#[test]
fn variables_contain_the_facts_of_the_environment() {
    let mut shell = variables(&[("PATH", "/bin")]);
    enter(&mut shell, &DETACHED);
    let expected = variables(&[
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("GENV_ENVIRONMENT_ID", "42"),
        ("GENV_RESTORE", "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES PATH=/opt/genv/shims PROMPT SHOWN=-1"),
        ("GENV_SHELL", "1"),
        ("PATH", "/opt/genv/shims:/bin"),
    ]);
    assert_eq!(shell, expected);
    refresh(&mut shell, &attached());
    for (name, value) in [
        ("CUDA_VISIBLE_DEVICES", "0,3"),
        ("GENV_ENVIRONMENT_NAME", "my env"),
        ("GENV_GPUS", "2"),
        ("GENV_GPU_MEMORY", "4g"),
    ] {
        assert_eq!(shell[name], *value, "{name}");
    }
    refresh(&mut shell, &DETACHED);
    assert_eq!(shell, expected);
}

#[test]
fn leaving_restores_unset_empty_and_set_variables() {
    for devices in [None, Some(""), Some("0"), Some("GPU-1,weird ' \n$(id)")] {
        for order in [None, Some(""), Some("FASTEST_FIRST")] {
            let mut before = variables(&[("PATH", "/bin:/usr/bin"), ("HOME", "/home/me")]);
            before.extend(devices.map(|value| ("CUDA_VISIBLE_DEVICES".to_owned(), value.into())));
            before.extend(order.map(|value| ("CUDA_DEVICE_ORDER".to_owned(), value.into())));
            let mut shell = before.clone();
            enter(&mut shell, &DETACHED);
            // Repeated calls in between change nothing.
            enter(&mut shell, &attached());
            refresh(&mut shell, &attached());
            leave(&mut shell);
            assert_eq!(shell, before);
            leave(&mut shell);
            assert!(!shell.contains_key("GENV_RESTORE"));
        }
    }
}

#[test]
fn a_value_that_would_prevent_the_start_of_programs_is_omitted() {
    let mut shell = variables(&[("PATH", "/bin")]);
    let (name, devices) = ("x".repeat(200_000), (0..50_000).collect::<Vec<u32>>());
    let hostile = ShellEnvironment { name: Some(&name), devices: &devices, ..DETACHED };
    enter(&mut shell, &hostile);
    assert!(!shell.contains_key("GENV_ENVIRONMENT_NAME"));
    assert_eq!(shell["CUDA_VISIBLE_DEVICES"], *"-1");
}

#[test]
fn of_path_only_the_own_entry_is_added_and_removed() {
    let own = format!("/bin:{SHIMS}");
    let added = format!("/conda/bin:{SHIMS}:/bin::/late");
    for (before, within, changed, after) in [
        ("/bin:", format!("{SHIMS}:/bin:"), &*added, "/conda/bin:/bin::/late"),
        // The user has it, or removed it.
        (&own, own.clone(), &own, &own),
        ("/bin", format!("{SHIMS}:/bin"), "/bin", "/bin"),
    ] {
        let mut shell = variables(&[("PATH", before)]);
        enter(&mut shell, &DETACHED);
        assert_eq!(shell["PATH"], *within);
        shell.insert("PATH".to_owned(), changed.into());
        leave(&mut shell);
        assert_eq!(shell["PATH"], *after);
    }
}

#[test]
fn values_of_an_environment_of_another_program_are_not_restored() {
    let mut shell = variables(&[("GENV_ENVIRONMENT_ID", "42"), ("CUDA_VISIBLE_DEVICES", "0"), ("PATH", "/bin")]);
    refresh(&mut shell, &attached());
    leave(&mut shell);
    assert_eq!(shell, variables(&[("PATH", "/bin")]));
}

#[test]
fn the_choice_about_the_prompt_stays() {
    let mut shell = variables(&[("PATH", "/bin")]);
    enter(&mut shell, &DETACHED);
    assert_eq!(refresh(&mut shell, &DETACHED).last(), Some(&Change::Prompt(true)));
    leave(&mut shell);
    change(&mut shell, &DETACHED, Occasion::Enter { prompt: false });
    assert_eq!(refresh(&mut shell, &DETACHED).last(), Some(&Change::Prompt(false)));
}

#[test]
fn each_shell_gets_code_in_its_syntax() {
    let changes = [
        Change::Set("GENV_ENVIRONMENT_NAME", "it's".into()),
        Change::Set("PATH", "/a b:/c".into()),
        Change::Unset("GENV_GPUS"),
        Change::Prompt(true),
        Change::Watch(vec!["/s".into(), "".into(), "70".into(), "/it's".into()]),
    ];
    let code = |shell| String::from_utf8(code(shell, &changes)).unwrap();
    let posix = r"\builtin export GENV_ENVIRONMENT_NAME='it'\''s'
\builtin export PATH='/a b:/c'
\builtin unset -v GENV_GPUS
__genv_prompt on
__genv_watch '/s' '' '70' '/it'\''s'
";
    assert_eq!(code(Shell::Bash), posix);
    assert_eq!(code(Shell::Zsh), posix);
    let fish = r"builtin set --global --export GENV_ENVIRONMENT_NAME 'it\'s'
builtin set --global --export PATH '/a b' '/c'
builtin set --query --global GENV_GPUS; and builtin set --erase --global GENV_GPUS
__genv_prompt on
__genv_watch '/s' '' '70' '/it\'s'
";
    assert_eq!(code(Shell::Fish), fish);
}

#[test]
fn an_update_before_a_prompt_keeps_the_users_value() {
    let mut shell = variables(&[("PATH", "/bin")]);
    enter(&mut shell, &attached());
    change(&mut shell, &DETACHED, Occasion::Prompt);
    assert_eq!(shell["CUDA_VISIBLE_DEVICES"], *"-1");
    shell.insert("CUDA_VISIBLE_DEVICES".to_owned(), "3".into());
    let devices = users_devices(|name| shell.get(name).cloned());
    assert_eq!(devices, Some("3".into()));
    change(&mut shell, &attached(), Occasion::Prompt);
    assert_eq!(shell["CUDA_VISIBLE_DEVICES"], *"3");
    assert_eq!(shell["GENV_GPUS"], *"2");
    refresh(&mut shell, &attached());
    assert_eq!(shell["CUDA_VISIBLE_DEVICES"], *"0,3");
    assert_eq!(users_devices(|name| shell.get(name).cloned()), None);
}
