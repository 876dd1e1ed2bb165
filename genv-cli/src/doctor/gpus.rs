//! Checks of the GPUs, and of the devices in the state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use genv_core::collect::withheld_values;
use genv_core::gpu::GpuSample;
use genv_core::model::MemoryAmount;
use genv_core::state::allocate::{MIG_UNSPLIT_REMEDY, in_mig_mode_unsplit};
use genv_core::state::{Inventory, State};

use super::Check;
use crate::driver_timeout::needed_patience;
use crate::machine::Machine;
use crate::output::counted;

/// A smaller difference of memory between state and driver is rounding: versions of nvidia-smi round differently.
const ROUNDING_BYTES: u64 = 1 << 20;

/// A driver whose GPUs are initialized answers faster.
const SLOW: Duration = Duration::from_secs(1);

/// Checks the GPUs and the recorded devices.
pub(super) fn examine(machine: &mut Machine, state: &State) -> Vec<Check> {
    const NAME: &str = "GPUs";
    let asked = Instant::now();
    let sample = match machine.sample(needed_patience()) {
        Ok(sample) => sample,
        Err(error) => {
            let remedy = "'nvidia-smi' must work first. To try genv without a GPU set GENV_DEVICES=2";
            return vec![Check::fail(NAME, error.to_string(), remedy)];
        }
    };
    let first_answer = (!machine.is_simulated()).then(|| first_answer(asked.elapsed()));
    let found = Inventory::of(&sample);
    let driver = sample.driver_version.as_deref();
    let driver = driver.map_or("no driver version".to_owned(), |it| format!("driver {it}"));
    let lost = lost(&sample);
    let devices = counted(found.count() as usize, "device");
    let driver =
        if machine.is_simulated() { format!("{driver}, simulated: no GPU of this machine is used") } else { driver };
    let mig_unsplit = sample.devices.iter().filter(|device| device.mig_unsplit);
    let mig_unsplit: Vec<u32> = mig_unsplit.map(|device| device.index.gpu).collect();
    let gpus = if !lost.is_empty() {
        Check::fail(
            NAME,
            format!("{devices}, {driver}; lost: {}", lost.join(", ")),
            "see 'dmesg' for XID errors, and reset the GPU or restart the machine",
        )
    } else if !mig_unsplit.is_empty() {
        let found = format!("{devices}, {driver}; {}", in_mig_mode_unsplit(&mig_unsplit));
        Check::warn(NAME, found, MIG_UNSPLIT_REMEDY)
    } else {
        Check::ok(NAME, format!("{devices}, {driver}"))
    };
    let mut checks: Vec<Check> =
        [Some(gpus), first_answer, Some(agreement(state, &found))].into_iter().flatten().collect();
    checks.extend(withheld(sample));
    checks
}

/// Checks the time of the driver's first answer to this program.
fn first_answer(took: Duration) -> Check {
    const NAME: &str = "driver";
    let found = format!("its first answer took {:.1} s", took.as_secs_f64());
    if took < SLOW {
        return Check::ok(NAME, found);
    }
    Check::warn(
        NAME,
        format!("{found}, for which commands wait"),
        "run nvidia-persistenced ('systemctl enable --now nvidia-persistenced'): without it the driver initializes the GPUs for each \
         program. On a busy machine try again later",
    )
}

/// One check for each value that the devices have and the driver does not give, or that is not believed.
fn withheld(sample: GpuSample) -> impl Iterator<Item = Check> {
    let remedy =
        "see 'nvidia-smi -q' and the kernel log; the value is absent, and nothing is done by it, until it is back";
    withheld_values(sample).into_iter().map(move |it| Check::warn("withheld value", it.to_string(), remedy))
}

/// The indices of devices that do not answer.
fn lost(sample: &GpuSample) -> Vec<String> {
    let lost = sample.devices.iter().filter(|device| device.lost);
    lost.map(|device| device.index.to_string()).collect()
}

/// Checks that the state has the present devices.
fn agreement(state: &State, found: &Inventory) -> Check {
    const NAME: &str = "recorded devices";
    if state.devices.is_empty() {
        return Check::ok(NAME, "there are none yet: the first 'genv devices' adds them");
    }
    let known: BTreeMap<u32, Option<MemoryAmount>> =
        state.devices.iter().map(|it| (it.index, it.total_memory)).collect();
    let found: BTreeMap<u32, Option<MemoryAmount>> =
        found.devices().into_iter().map(|it| (it.index, it.total_memory)).collect();
    let mut differences = Vec::new();
    for (index, total) in &found {
        match (known.get(index), total) {
            (None, _) => differences.push(format!("device {index} is new")),
            (Some(Some(known)), Some(total)) if known.bytes().abs_diff(total.bytes()) > ROUNDING_BYTES => {
                differences.push(format!("device {index} has {total}, not {known}"));
            }
            (Some(_), _) => {}
        }
    }
    let gone = known.keys().filter(|index| !found.contains_key(index));
    differences.extend(gone.map(|index| format!("device {index} is gone")));
    if differences.is_empty() {
        return Check::ok(NAME, "they are the present devices");
    }
    Check::warn(
        NAME,
        format!("they are not up to date: {}", differences.join(", ")),
        "attaching corrects it; 'genv devices --reset' removes devices that are gone, and detaches all devices",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_slow_first_answer_of_the_driver_is_a_problem_with_a_remedy() {
        let quick = first_answer(Duration::from_millis(90));
        assert_eq!((quick.verdict, &*quick.found), (Verdict::Ok, "its first answer took 0.1 s"));
        let slow = first_answer(Duration::from_millis(2100));
        assert_eq!(slow.verdict, Verdict::Warn);
        assert!(slow.found.contains("2.1 s") && slow.remedy.unwrap().contains("nvidia-persistenced"));
    }
}
