//! Thursday: jobs, a Jupyter kernel, a container, and tmux.

use anyhow::Result;

use crate::diary::week::{REPORTS, Week};

pub(crate) fn play(week: &mut Week) -> Result<()> {
    week.scene(
        25,
        "Thursday, 09:00. All start anew. Ann starts a job that needs no terminal.",
        "0 ann night 2.0 | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| {
            week.rules(REPORTS)?;
            week.ben.does("genv deactivate", "has ended")?;
            week.cara.does("genv deactivate", "has ended")?;
            week.ann
                .does("genv exec --detach --name night --gpus 1 -- sh -c 'echo epoch 1; exec train 1d'", "1\r\n")?;
            week.ann.does("genv jobs", "running")?;
            Ok(())
        },
    )?;
    week.scene(
        26,
        "Thursday, 12:00. Ann logs out. Her job goes on.",
        "0 ann night 2.0 | 1 free | 2 free | 3 free
         ann away | ben - | cara -",
        |week| {
            week.ann.logs_out()?;
            week.ben.does("genv who 0", "ann")?;
            Ok(())
        },
    )?;
    week.scene(
        27,
        "Thursday, 13:00. Ann logs in again, reads the job's output, and stops the job.",
        "0 free | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| {
            week.ann.logs_in(&week.stage)?;
            week.ann.does("genv logs night", "epoch 1")?;
            week.ann.does("genv stop night", "")?;
            week.ann.ends("genv wait night", 143, "")?;
            Ok(())
        },
    )?;
    week.scene(
        28,
        "Thursday, 14:00. Ben's editor starts a Jupyter kernel, and gives it an environment with a device.",
        "0 ben notebook 4.0 | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| {
            week.ben.does(&kernel(week.ben.uid), "")?;
            week.ben.reads_from("genv envs find --pid $!", "kernel")?;
            Ok(())
        },
    )?;
    week.scene(
        29,
        "Thursday, 15:00. The kernel ends, and with it the environment.",
        "0 free | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| week.ben.stops_training(),
    )?;
    week.scene(
        30,
        "Thursday, 15:30. Cara runs a container with all devices. It gets hers alone.",
        "0 free | 1 free | 2 cara box | 3 cara box
         ann - | ben - | cara (genv) 2,3",
        |week| {
            week.cara.does("genv activate --index 2,3 --name box", "with devices 2, 3")?;
            week.cara.does(
                "docker run --gpus all image",
                "docker got: run -e GENV_ENVIRONMENT_ID --gpus \"device=2,3\" image",
            )?;
            week.cara.ends("docker run --gpus device=0 image", 4, "genv: cannot ")?;
            // Outside of environments the engine gets the line as it is.
            week.ann.does("docker run --gpus all image", "docker got: run --gpus all image")?;
            Ok(())
        },
    )?;
    week.scene(
        31,
        "Thursday, 16:00. Cara works on in tmux, and closes her terminal. The environment goes on.",
        "0 free | 1 free | 2 cara box 2.0 | 3 cara box 2.0
         ann - | ben - | cara away",
        |week| {
            week.cara.does("tmux -f /dev/null new-session -d -s work fish", "")?;
            let devices = "tmux send-keys -t work 'echo $CUDA_VISIBLE_DEVICES >seen; train 1d' Enter";
            week.cara.does(devices, "")?;
            week.cara.reads_from("cat seen", "2,3\r\n")?;
            week.cara.logs_out()
        },
    )?;
    week.scene(
        32,
        "Thursday, 18:00. Cara logs in again, and ends training and environment in tmux. All devices are free.",
        "0 free | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| {
            week.cara.logs_in(&week.stage)?;
            week.cara.does("tmux send-keys -t work C-c 'genv deactivate; exit' Enter", "")?;
            Ok(())
        },
    )
}

/// As editors do: a process of one's own becomes the member of a new environment, which gets devices, and the process
/// the variables of the environment.
fn kernel(uid: u32) -> String {
    let program = format!(
        "genv envs activate --eid kernel --uid {uid} --pid $$ && genv envs config --eid kernel name --name notebook && \
         genv devices attach --eid kernel --count 1 && \
         GENV_ENVIRONMENT_ID=kernel CUDA_VISIBLE_DEVICES=$(genv devices find --eid kernel) GIB=4 exec train 1d"
    );
    format!("{{ sh -c '{program}' & }}")
}
