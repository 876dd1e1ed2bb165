//! A week of three users on one machine: 40 scenes with real programs, and after each scene what every user sees.
//!
//! Ann works in bash, Ben in zsh, Cara in fish. The machine has two A100 (devices 0 and 1) and two H100 (2 and 3).

mod driver;
mod friday;
mod monday;
mod person;
mod sees;
mod stage;
mod thursday;
mod tuesday;
mod wednesday;
mod week;

use anyhow::Result;
use genv_tests::root::{apart, require_root};

use crate::diary::week::Week;

#[test]
fn three_users_share_a_machine_for_a_week() -> Result<()> {
    require_root();
    apart(|| {
        let mut week = Week::new()?;
        monday::play(&mut week)?;
        tuesday::play(&mut week)?;
        wednesday::play(&mut week)?;
        thursday::play(&mut week)?;
        friday::play(&mut week)?;
        week.is_over()
    })
}
