//! Monday: users take devices, look, and give devices back.

use anyhow::Result;

use crate::diary::week::Week;

pub(crate) fn play(week: &mut Week) -> Result<()> {
    week.scene(
        1,
        "Monday, 09:00. Ann logs in and takes one device.",
        "0 ann first | 1 free | 2 free | 3 free
         ann (genv) 0 | ben away | cara away",
        |week| {
            week.ann.logs_in(&week.stage)?;
            week.ann.does("genv activate --gpus 1 --name first", "with device 0 (NVIDIA A100-SXM4-40GB, 40.0 GiB)")?;
            Ok(())
        },
    )?;
    week.scene(
        2,
        "Monday, 09:30. Ben looks who has what, and takes both H100.",
        "0 ann first | 1 free | 2 ben big | 3 ben big
         ann (genv) 0 | ben (genv) 2,3 | cara away",
        |week| {
            week.ben.logs_in(&week.stage)?;
            week.ben.does("genv", "MEMORY GiB")?;
            week.ben.does("genv who 0", "ann")?;
            week.ben.does("genv free", "H100")?;
            week.ben.does(
                "genv activate --gpus 2 --gpu-type h100 --name big",
                "with devices 2, 3 (NVIDIA H100 80GB HBM3, 80.0 GiB each)",
            )?;
            Ok(())
        },
    )?;
    week.scene(
        3,
        "Monday, 10:00. Cara asks for two devices, and learns who has the others.",
        "0 ann first | 1 free | 2 ben big | 3 ben big
         ann (genv) 0 | ben (genv) 2,3 | cara -",
        |week| {
            week.cara.logs_in(&week.stage)?;
            week.cara.ends("genv activate --gpus 2", 4, "1 of 4 can be had, and 2 environments hold the others")?;
            Ok(())
        },
    )?;
    week.scene(
        4,
        "Monday, 11:00. Ann trains. Her nvidia-smi shows her device alone, and her process.",
        "0 ann first 2.0 | 1 free | 2 ben big | 3 ben big
         ann (genv) 0 | ben (genv) 2,3 | cara -",
        |week| {
            week.ann.trains("")?;
            week.ann.does("nvidia-smi -L | grep -c GPU", "1\r\n")?;
            week.ann.reads_from("nvidia-smi", "2048MiB")?;
            Ok(())
        },
    )?;
    week.scene(
        5,
        "Monday, 13:00. Ann attaches a second device. Her training keeps its device.",
        "0 ann first 2.0 | 1 ann first | 2 ben big | 3 ben big
         ann (genv) 0,1 | ben (genv) 2,3 | cara -",
        |week| {
            let line = "attached device 1 (NVIDIA A100-SXM4-40GB, 40.0 GiB): environment ";
            week.ann.does("genv attach --count 2", line)?;
            Ok(())
        },
    )?;
    week.scene(
        6,
        "Monday, 15:00. In a second terminal Ben gives one H100 back. His first terminal reports that.",
        "0 ann first 2.0 | 1 ann first | 2 ben big | 3 free
         ann (genv) 0,1 | ben (genv) 2 | cara -",
        |week| {
            let mut second = week.ben.once_more();
            second.logs_in(&week.stage)?;
            let joins = format!("genv activate --id {}", week.ben.pid()?);
            second.does(&joins, "joined environment")?;
            second.does("genv detach --index 3", "detached device 3: environment")?;
            week.ben.reads("device 3 was detached by another command. CUDA_VISIBLE_DEVICES is 2 now")?;
            second.logs_out()
        },
    )?;
    week.scene(
        7,
        "Monday, 15:10. Cara takes this device by its index.",
        "0 ann first 2.0 | 1 ann first | 2 ben big | 3 cara eval
         ann (genv) 0,1 | ben (genv) 2 | cara (genv) 3",
        |week| {
            let line = "with device 3 (NVIDIA H100 80GB HBM3, 80.0 GiB)";
            week.cara.does("genv activate --index 3 --name eval", line)?;
            Ok(())
        },
    )?;
    week.scene(
        8,
        "Monday, 18:00. Ann ends her training, and all log out. All devices are free.",
        "0 free | 1 free | 2 free | 3 free
         ann away | ben away | cara away",
        |week| {
            week.ann.stops_training()?;
            week.ann.does("genv deactivate", "which has ended: devices 0, 1 were detached")?;
            for person in [&mut week.ann, &mut week.ben, &mut week.cara] {
                person.logs_out()?;
            }
            Ok(())
        },
    )
}
