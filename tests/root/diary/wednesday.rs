//! Wednesday: the queue, and leases.

use anyhow::{Result, ensure};

use crate::diary::week::Week;

/// Environments go back at the end of their leases.
const LEASES: &str = "mode: enforce\nrules:\n\
    - {kind: max-age, leases: true, action: detach, for: 1s, warn: [1s]}\n";

pub(crate) fn play(week: &mut Week) -> Result<()> {
    week.scene(
        17,
        "Wednesday, 09:00. Ann takes all devices for eight hours. Everybody sees that there is an end.",
        "0 ann all until | 1 ann all until | 2 ann all until | 3 ann all until
         ann (genv) 0,1,2,3 | ben - | cara -",
        |week| {
            week.ann.logs_in(&week.stage)?;
            week.ann.does("genv activate --gpus 4 --name all --for 8h", "")?;
            week.ben.logs_in(&week.stage)?;
            week.cara.logs_in(&week.stage)
        },
    )?;
    week.scene(
        18,
        "Wednesday, 09:30. Ben waits for a device, and learns when to expect it.",
        "0 ann all until | 1 ann all until | 2 ann all until | 3 ann all until
         ann (genv) 0,1,2,3 | ben waits | cara -",
        |week| {
            week.ben.begins("genv activate --wait --gpus 1 --name quick", "next in the queue, expected")?;
            week.cara.reads_from("genv queue", "ben")?;
            let waits = |scrape: &genv_tests::metrics::Scrape| {
                scrape.value("genv_queue_length", &[]).is_ok_and(|length| length == 1.0)
            };
            week.exporter.wait_for("one process in the queue", waits)?;
            Ok(())
        },
    )?;
    week.scene(
        19,
        "Wednesday, 10:00. Cara waits for two devices behind him.",
        "0 ann all until | 1 ann all until | 2 ann all until | 3 ann all until
         ann (genv) 0,1,2,3 | ben waits | cara waits",
        |week| {
            week.cara.begins("genv activate --wait --gpus 2 --name two", "one before you")?;
            let queue = week.ann.does("genv queue", "ben")?;
            let places = [queue.find(" ben "), queue.find(" cara ")];
            ensure!(places[0].is_some() && places[0] < places[1], "{queue}");
            week.ann.does("genv status", "ben")?;
            Ok(())
        },
    )?;
    week.scene(
        20,
        "Wednesday, 11:00. Ann gives one device back. It is Ben's turn, and Cara is next.",
        "0 ann all until | 1 ann all until | 2 ann all until | 3 ben quick
         ann (genv) 0,1,2 | ben (genv) 3 | cara waits",
        |week| {
            week.ann.does("genv detach --index 3", "detached device 3")?;
            week.ben.goes_on("it is your turn, after")?;
            week.cara.shows("next in the queue")
        },
    )?;
    week.scene(
        21,
        "Wednesday, 12:00. Ann gives a second device back. It is kept for Cara, who needs two.",
        "0 ann all until | 1 ann all until | 2 waited for | 3 ben quick
         ann (genv) 0,1 | ben (genv) 3 | cara waits",
        |week| {
            week.ann.does("genv detach --index 2", "detached device 2")?;
            week.ben.does("genv free", "cara")?;
            week.ben.ends("genv attach --count 2", 4, "wait")?;
            Ok(())
        },
    )?;
    week.scene(
        22,
        "Wednesday, 13:00. Ann extends her lease, and then leaves all the same. It is Cara's turn.",
        "0 cara two | 1 cara two | 2 free | 3 ben quick
         ann - | ben (genv) 3 | cara (genv) 0,1",
        |week| {
            week.ann.does("genv extend 2h", "has a lease until")?;
            week.ann.does("genv deactivate", "which has ended: devices 0, 1 were detached")?;
            week.cara.goes_on("it is your turn, after")
        },
    )?;
    week.scene(
        23,
        "Wednesday, 15:00. Ben's lease ends. His prompt reports that, and he keeps the device.",
        "0 cara two | 1 cara two | 2 free | 3 ben quick until
         ann - | ben (genv) 3 | cara (genv) 0,1",
        |week| {
            week.ben.does("genv extend 1s", "has a lease until")?;
            week.ben.reads("ended at")
        },
    )?;
    week.scene(
        24,
        "Wednesday, 17:00. The admin lets leases count. Ben is warned, and the enforcer takes the device back.",
        "0 cara two | 1 cara two | 2 free | 3 free
         ann - | ben (genv) -1 | cara (genv) 0,1",
        |week| {
            week.rules(LEASES)?;
            week.ben.shows_in_order(&["this is taken: device 3", "This was taken: device 3"])?;
            week.ben.reads("the enforcer detached device 3 by the rule max-age")?;
            week.ben.does("genv why", "max-age")?;
            Ok(())
        },
    )
}
