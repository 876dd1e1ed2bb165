//! Tuesday: users share a device by its memory, and one works outside of environments.

use anyhow::Result;

use crate::diary::week::Week;

pub(crate) fn play(week: &mut Week) -> Result<()> {
    week.scene(
        9,
        "Tuesday, 09:00. Ann's project has a folder .genv, which configures her environment.",
        "0 ann shared | 1 free | 2 free | 3 free
         ann (genv) 0 | ben away | cara away",
        |week| {
            week.ann.logs_in(&week.stage)?;
            week.ann.does("mkdir -p project/.genv && cd project", "")?;
            week.ann.does("echo shared >.genv/name; echo 1 >.genv/gpus; echo 10g >.genv/gpu-memory", "")?;
            let shown = week.ann.does("genv activate", "(NVIDIA A100-SXM4-40GB, 10g of 40.0 GiB)")?;
            week.ann.does("genv status", "10g")?;
            anyhow::ensure!(shown.contains("/project/.genv"), "{shown}");
            Ok(())
        },
    )?;
    week.scene(
        10,
        "Tuesday, 09:30. Ben takes 20 GB of the same device.",
        "0 ann, ben shared, half | 1 free | 2 free | 3 free
         ann (genv) 0 | ben (genv) 0 | cara away",
        |week| {
            week.ben.logs_in(&week.stage)?;
            week.ben.does(
                "genv activate --index 0 --gpu-memory 20g --name half",
                "with device 0 (NVIDIA A100-SXM4-40GB, 20g of 40.0 GiB)",
            )?;
            Ok(())
        },
    )?;
    week.scene(
        11,
        "Tuesday, 10:00. Cara asks for more of the device than is left. She takes less.",
        "0 ann, ben, cara shared, half, small | 1 free | 2 free | 3 free
         ann (genv) 0 | ben (genv) 0 | cara (genv) 0",
        |week| {
            week.cara.logs_in(&week.stage)?;
            let line = "genv activate --index 0 --gpu-memory 20g";
            week.cara.ends(line, 4, "cannot attach device 0")?;
            week.cara.does("genv activate --index 0 --gpu-memory 8g --name small", "8g of 40.0 GiB")?;
            Ok(())
        },
    )?;
    week.scene(
        12,
        "Tuesday, 11:00. Ben leaves his environment, and trains on device 2 without one.",
        "0 ann, cara shared, small | 1 free | 2 ben used, not held 2.0 +1 | 3 free
         ann (genv) 0 | ben - | cara (genv) 0",
        |week| {
            week.ben.does("genv deactivate", "which has ended: device 0 was detached")?;
            week.ben.trains("CUDA_VISIBLE_DEVICES=2")?;
            Ok(())
        },
    )?;
    week.scene(
        13,
        "Tuesday, 11:30. Cara wants device 2. genv names Ben's process and refuses.",
        "0 ann shared | 1 free | 2 ben used, not held 2.0 +1 | 3 free
         ann (genv) 0 | ben - | cara -",
        |week| {
            week.cara.does("genv deactivate", "has ended")?;
            let shown = week.cara.ends("genv activate --index 2", 4, "cannot attach device 2: ")?;
            anyhow::ensure!(shown.contains(" of ben (2.0 GiB, since 20"), "{shown}");
            week.cara.does("genv free", "used, not held")?;
            week.cara.does("genv who 2", "ben")?;
            Ok(())
        },
    )?;
    week.scene(
        14,
        "Tuesday, 11:40. Cara needs both H100 and takes them with --force, and a warning.",
        "0 ann shared | 1 free | 2 cara forced 2.0 +1 | 3 cara forced
         ann (genv) 0 | ben - | cara (genv) 2,3",
        |week| {
            let line = "genv activate --gpus 2 --gpu-type h100 --name forced";
            week.cara.ends(line, 4, "1 of 2 such devices can be had. Device 2: process ")?;
            week.cara.does(&format!("{line} --force"), "which does not hold it")?;
            Ok(())
        },
    )?;
    week.scene(
        15,
        "Tuesday, 12:00. Cara's nvidia-smi shows nothing of Ben's process but its memory.",
        "0 ann shared | 1 free | 2 cara forced 2.0 +1 | 3 cara forced
         ann (genv) 0 | ben - | cara (genv) 2,3",
        |week| {
            let shown = week.cara.does("nvidia-smi", "2.0 GiB of device 2 are used by others")?;
            anyhow::ensure!(!shown.contains("train"), "{shown}");
            Ok(())
        },
    )?;
    week.scene(
        16,
        "Tuesday, 18:00. Ben ends his process, and all log out.",
        "0 free | 1 free | 2 free | 3 free
         ann away | ben away | cara away",
        |week| {
            week.ben.stops_training()?;
            for person in [&mut week.ann, &mut week.ben, &mut week.cara] {
                person.logs_out()?;
            }
            Ok(())
        },
    )
}
