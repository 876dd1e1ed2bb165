//! One environment of the state, as a program that tests can start many of: it becomes a member of an
//! environment, attaches devices, prints their indices or why not, and stays until its input ends.
//!
//! `state_client DIRECTORY EID COUNT [MEMORY]`

use std::io::{Read, Write, stdin, stdout};

use anyhow::{Context, Result};
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{AttachRequest, Selection};
use genv_core::state::{Configuration, MemberId, Refusal, StateStore, StoreError};

#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, eid, count, memory @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: state_client DIRECTORY EID COUNT [MEMORY]");
    };
    let request = AttachRequest::new(Selection::Count(count.parse().context("COUNT is no number")?));
    let memory = memory.first().map(|memory| MemoryAmount::from_person(memory));
    let configuration = Configuration { gpu_memory: memory.transpose()?, ..Configuration::default() };
    let mut store = StateStore::new(directory).patience(None);
    let attached = store.update(|state| -> Result<Vec<u32>, ClientError> {
        state.activate(eid, 0, Some("root"), &MemberId::Process(std::process::id()));
        state.configure(eid, configuration)?;
        Ok(state.attach(eid, &request)?)
    });
    let line = match attached {
        Ok(indices) => {
            let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
            indices.join(",")
        }
        Err(ClientError::Refused(error)) => format!("no: {error}"),
        Err(error) => return Err(error.into()),
    };
    writeln!(stdout(), "{line}")?;
    stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
