//! The state, changed by many programs at once.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use genv_core::state::{Inventory, StateStore, StoreError};
use genv_tests::state_client::StateClient;

const PROGRAMS: u32 = 16;

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
            == "no: cannot attach 1 devices: 0 of 16 can be had, and 16 environments hold the others"
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
