//! The state, changed by many programs at once.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use genv_core::state::{Inventory, StateStore, StoreError};
use genv_tests::state_client::StateClient;
use rustix::process::geteuid;

const PROGRAMS: u32 = 16;

/// How many programs are killed, each at another time.
const ROUNDS: u32 = 150;

#[test]
fn of_many_programs_at_once_each_has_its_device_until_it_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut store = StateStore::new(folder.path());
    let devices = (0..PROGRAMS).map(|index| (index, Some(16_384)));
    let inventory = Inventory::new(devices);
    store.update(|state| {
        state.merge_inventory(&inventory);
        Ok::<_, StoreError>(())
    })?;
    let start = |program: u32| StateClient::start(folder.path(), &program.to_string(), 1, None);
    let mut clients: Vec<StateClient> = (0..PROGRAMS).map(start).collect::<Result<_>>()?;
    let mut indices = BTreeSet::new();
    for client in &mut clients {
        indices.insert(client.answer()?.parse::<u32>()?);
    }
    ensure!(indices == (0..PROGRAMS).collect(), "{indices:?}");
    let mut late = StateClient::start(folder.path(), "late", 1, None)?;
    ensure!(
        late.answer()?
            == "no: cannot attach 1 device: 0 of 16 can be had, and 16 environments hold the others. 'genv devices' tells who, '--wait' waits"
    );
    ensure!(store.read()?.environments.len() == 16);

    clients.truncate(3);
    let state = store.read()?;
    ensure!(state.environments.len() == 3, "{:?}", state.environments);
    let mut next = StateClient::start(folder.path(), "next", 13, None)?;
    let had = next.answer()?;
    ensure!(had.split(',').count() == 13, "{had}");
    Ok(())
}

#[test]
fn programs_that_are_killed_at_any_time_leave_a_whole_state() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut store = StateStore::new(folder.path());
    let inventory = Inventory::new([(0, Some(16_384))]);
    store.update(|state| {
        state.merge_inventory(&inventory);
        Ok::<_, StoreError>(())
    })?;
    let began = Instant::now();
    let mut kept = StateClient::start(folder.path(), "kept", 1, Some("1mi"))?;
    ensure!(kept.answer()? == "0");
    // How long a program takes depends on the machine.
    let takes = began.elapsed();
    let mut activated = 0;
    for round in 0..ROUNDS {
        let mut client = StateClient::start(folder.path(), "killed", 1, Some("1mi"))?;
        match round % 10 {
            // Surely after its change.
            0 => drop(client.answer()?),
            _ => std::thread::sleep(takes * round / ROUNDS),
        }
        drop(client);
        let left = std::fs::read_to_string(folder.path().join("envs.json"))?;
        activated += u32::from(left.contains("killed"));
        let state = store.read()?;
        ensure!(state.environments.len() == 1, "{:?}", state.environments);
        store.update(|_| Ok::<_, StoreError>(()))?;
        let told = store.take_notices();
        ensure!(told.is_empty(), "{told:?}");
        let attachments = &store.read()?.devices[0].attachments;
        ensure!(attachments.len() == 1 && attachments[0].eid == "kept");
    }
    ensure!(activated >= ROUNDS / 10, "{activated} of {ROUNDS} were killed after their change");
    let names = std::fs::read_dir(folder.path())?;
    let names: Result<BTreeSet<_>, _> = names.map(|it| it.map(|it| it.file_name())).collect();
    let confirmed = format!("genv-confirmed-{}.json", geteuid().as_raw());
    let expected = ["devices.json", "envs.json", &confirmed, "genv-members.json", "genv.lock"];
    ensure!(names? == expected.map(Into::into).into());
    Ok(())
}
