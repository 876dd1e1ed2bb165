//! A driver that fails, and a wall clock that is turned.

use anyhow::Result;

use super::super::clock::TURNS;
use super::Adversary;

pub(super) fn hanging_driver(by: &mut Adversary<'_>) -> Result<()> {
    let faults = *by.random.one_of(&["{hang: all}", "{hang: nvmlDeviceGetComputeRunningProcesses_v3}", ""]);
    by.show(faults)
}

pub(super) fn lost_driver(by: &mut Adversary<'_>) -> Result<()> {
    let faults = ["{init: driver_not_loaded}", "{reload: 7}", "{insufficient_size: 3}", ""];
    let faults = *by.random.one_of(&faults);
    by.show(faults)
}

pub(super) fn clocks(by: &mut Adversary<'_>) -> Result<()> {
    let by_so_much = *by.random.one_of(&TURNS);
    by.lab.clock.turn(by_so_much)
}
