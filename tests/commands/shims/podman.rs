//! Containers of an environment that podman makes.

use anyhow::Result;

use crate::shims::docker::{client, knows_every_flag};
use crate::shims::stage::{Stage, called_with, text};

#[test]
fn containers_get_the_environments_devices_and_belong_to_it() -> Result<()> {
    let stage = Stage::new()?;
    for (line, called) in [
        // Device 1 is split, and 0,1,3 are devices, not a number of them.
        ("run --gpus all image", "run -e GENV_ENVIRONMENT_ID --gpus 0,1:0,1:1 image"),
        (
            "--log-level debug container run --gpus 0,3 image",
            "--log-level debug container run -e GENV_ENVIRONMENT_ID --gpus 0 image",
        ),
        (
            "run --pod p --device nvidia.com/gpu=all image",
            "run -e GENV_ENVIRONMENT_ID --pod p --device nvidia.com/gpu=0 \
             --device nvidia.com/gpu=1:0 --device nvidia.com/gpu=1:1 image",
        ),
        ("run -e NVIDIA_VISIBLE_DEVICES=all image", "run -e GENV_ENVIRONMENT_ID -e NVIDIA_VISIBLE_DEVICES=0,1 image"),
        ("compose up", "compose up"),
        ("ps", "ps"),
    ] {
        let typed: Vec<&str> = line.split(' ').collect();
        let output = client(&stage, "podman", "mine", &typed)?;
        assert_eq!(called_with(&text(&output.stdout)), called, "{line}");
        let is_noted = ["compose up", "3"].map(|part| line.contains(part));
        assert_eq!(text(&output.stderr).lines().count(), usize::from(is_noted.contains(&true)), "{line}: {output:?}");
    }
    let outside = ["run", "--gpus", "all", "image"];
    let output = client(&stage, "podman", "", &outside)?;
    assert_eq!(called_with(&text(&output.stdout)), "run --gpus all image");
    Ok(())
}

#[test]
fn what_the_environment_has_not_is_refused() -> Result<()> {
    let stage = Stage::new()?;
    for (environment, flag, code) in
        [("mine", "--gpus=2", 4), ("mine", "--gpus=device=0", 2), ("free", "--gpus=all", 4), ("gone", "--gpus=all", 1)]
    {
        let output = client(&stage, "podman", environment, &["run", flag, "image"])?;
        assert_eq!(output.status.code(), Some(code), "{environment} {flag}");
        assert_eq!(text(&output.stdout), "", "{environment} {flag}");
    }
    Ok(())
}

#[test]
fn every_flag_of_real_clients_is_known() -> Result<()> {
    knows_every_flag("podman-4", "podman", "2")?;
    knows_every_flag("podman", "podman", "2")
}
