//! Friday: the admin's rules are enforced, and somebody edits the records of others.

use anyhow::{Result, ensure};
use genv_tests::metrics::Scrape;
use serde_json::Value;

use crate::diary::week::Week;

/// The rules of the lab, with times of a test.
const RULES: &str = "mode: enforce\ndefaults: {undelivered: hold}\nrules:\n\
    - {kind: non-env-processes, action: terminate, for: 0s, warn: [2s]}\n\
    - {kind: env-devices, action: terminate, for: 0s, warn: []}\n\
    - {kind: env-memory, action: terminate, for: 0s, warn: [2s]}\n\
    - {kind: max-devices-per-user, limit: 2, action: detach, for: 0s, warn: [2s]}\n";

pub(crate) fn play(week: &mut Week) -> Result<()> {
    week.scene(
        33,
        "Friday, 09:00. Ben trains on device 1 without an environment.",
        "0 free | 1 ben used, not held 2.0 +1 | 2 free | 3 free
         ann - | ben - | cara -",
        |week| week.ben.trains("CUDA_VISIBLE_DEVICES=1"),
    )?;
    week.scene(
        34,
        "Friday, 10:00. The admin's rules hold from now on. Ben is warned, and then his process ends.",
        "0 free | 1 free | 2 free | 3 free
         ann - | ben - | cara -",
        |week| {
            week.rules(RULES)?;
            week.ben.reads("non-env-processes")?;
            week.ben.reads_from("genv why", "SIGTERM was sent at")?;
            Ok(())
        },
    )?;
    week.scene(
        35,
        "Friday, 11:00. Ann takes three devices, one more than the rules allow. The enforcer takes the newest back.",
        "0 ann greedy | 1 ann greedy | 2 free | 3 free
         ann (genv) 0,1 | ben - | cara -",
        |week| {
            week.ann.does("genv activate --gpus 2 --name greedy", "with devices 0, 1")?;
            week.ann.does("genv attach --index 3", "has devices 0, 1, 3")?;
            week.ann.shows_in_order(&["this is taken: device 3", "This was taken: device 3"])?;
            week.ann.reads("the enforcer detached device 3 by the rule max-devices-per-user")
        },
    )?;
    week.scene(
        36,
        "Friday, 12:00. Cara uses more memory than she asked for. She is warned, and her process ends.",
        "0 ann greedy | 1 ann greedy | 2 cara lean | 3 free
         ann (genv) 0,1 | ben - | cara (genv) 2",
        |week| {
            week.cara.does("genv activate --index 2 --gpu-memory 4g --name lean", "4g of 80.0 GiB")?;
            week.cara.trains("GIB=8")?;
            week.cara.reads("env-memory")?;
            week.cara.reads_from("genv why", "SIGTERM was sent at")?;
            Ok(())
        },
    )?;
    week.scene(
        37,
        "Friday, 14:00. Ben removes a device from Ann's record. He does not get it, and her training goes on.",
        "0 ann greedy 2.0 | 1 ann used, not held 2.0 +1 | 2 cara lean | 3 free
         ann (genv) 0 | ben - | cara (genv) 2",
        |week| {
            week.ann.trains("")?;
            // The driver knows her process.
            week.ann.reads_from("nvidia-smi", "2048MiB")?;
            week.enforcer.wait_for_cycles(3)?;
            week.ben.does(&steals(), "")?;
            week.ben.ends("genv activate --index 1", 4, "cannot attach device 1: process ")?;
            week.ann.reads("device 1 was detached by another command. CUDA_VISIBLE_DEVICES is 0 now")?;
            let evidence = week.enforcer.wait_for_status("the record is disputed", |status| {
                status["disputed_records"].to_string().contains("device 1 was taken from it")
            })?;
            ensure!(evidence["disputed_records"].to_string().contains("ann"), "{evidence:#}");
            week.ann.does("genv why", "disputed")?;
            week.enforcer.wait_for_cycles(10)?;
            week.ann.does("jobs", "Running")?;
            Ok(())
        },
    )?;
    week.scene(
        38,
        "Friday, 15:00. Ann attaches the device again, and nothing is disputed any more.",
        "0 ann greedy 2.0 | 1 ann greedy 2.0 | 2 cara lean | 3 free
         ann (genv) 0,1 | ben - | cara (genv) 2",
        |week| {
            week.ann.does("genv attach --index 1", "attached device 1")?;
            let settled = |status: &Value| status["disputed_records"].as_array().is_some_and(Vec::is_empty);
            week.enforcer.wait_for_status("nothing is disputed", settled)?;
            Ok(())
        },
    )?;
    week.scene(
        39,
        "Friday, 16:00. Ben empties the file of all environments. Nobody loses a device, and the next commands restore the rest.",
        "0 ann greedy 2.0 | 1 ann greedy 2.0 | 2 cara lean | 3 ben late
         ann (genv) 0,1 | ben (genv) 3 | cara (genv) 2",
        |week| {
            week.ben.does("echo >$GENV_TMPDIR/envs.json", "")?;
            week.cara.does("genv envs", "envs.json is damaged: it is empty")?;
            week.ben
                .does("genv activate --gpus 1 --name late", "with device 3")?;
            week.ann.does("genv attach", "has devices 0, 1")?;
            week.cara.does("genv attach", "has device 2")?;
            Ok(())
        },
    )?;
    week.scene(
        40,
        "Friday, 18:00. All leave. The admin reads what the rules did.",
        "0 free | 1 free | 2 free | 3 free
         ann away | ben away | cara away",
        |week| {
            week.ann.stops_training()?;
            for person in [&mut week.ann, &mut week.ben, &mut week.cara] {
                person.does("genv deactivate", "has ended")?;
                person.logs_out()?;
            }
            let report = week.enforcer.setup().said(&["report"])?;
            for part in ["max-age", "non-env-processes", "max-devices-per-user", "env-memory"] {
                ensure!(report.contains(part), "{report}");
            }
            let is_empty = |scrape: &Scrape| {
                scrape.all("genv_environment_devices", &[]).is_empty()
                    && scrape.value("genv_queue_length", &[]).is_ok_and(|length| length == 0.0)
            };
            week.exporter.wait_for("no environment", is_empty)?;
            Ok(())
        },
    )
}

/// Removes the attachments of device 1 from the file that every user may write.
fn steals() -> String {
    let program = "import json, os; path = os.environ[\"GENV_TMPDIR\"] + \"/devices.json\"; all = json.load(open(path)); \
        all[\"devices\"][1][\"attachments\"] = []; json.dump(all, open(path, \"w\"))";
    format!("python3 -c '{program}'")
}
