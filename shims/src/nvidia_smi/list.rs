//! The list of GPUs, `nvidia-smi -L`.

use super::filter::OutputFilter;
use crate::devices::gpu_of;

/// The list without a device, as the real program prints it.
pub(super) const NONE: &str = "No devices found.\n";

/// Keeps the lines of some GPUs, with those of the MIG devices under them, and lines that are about no GPU.
#[derive(Debug)]
pub(crate) struct ListFilter {
    kept: Vec<u32>,
    is_kept: bool,
    /// Whether a GPU was left out.
    leaves_out: bool,
    /// Whether a GPU was kept.
    shows: bool,
}

impl ListFilter {
    pub(crate) const fn new(kept: Vec<u32>) -> Self {
        Self { kept, is_kept: true, leaves_out: false, shows: false }
    }
}

impl OutputFilter for ListFilter {
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        match gpu_of(line) {
            Some(gpu) => {
                self.is_kept = self.kept.contains(&gpu);
                self.shows |= self.is_kept;
                self.leaves_out |= !self.is_kept;
            }
            None if line.starts_with(b" ") => {}
            None => self.is_kept = true,
        }
        if self.is_kept {
            out.extend_from_slice(line);
        }
    }

    fn is_answer(&self, line: &[u8]) -> bool {
        gpu_of(line).is_some()
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.leaves_out && !self.shows {
            out.extend_from_slice(NONE.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::testing;
    use super::*;

    #[test]
    fn a_list_without_a_device_of_the_environment_says_so() {
        let gpu =
            |gpu: u32| format!("GPU {gpu}: NVIDIA H100 (UUID: GPU-{gpu})\n  MIG 1g.10gb Device 0: (UUID: MIG-{gpu})\n");
        let both = gpu(1) + &gpu(7);
        for (output, expected) in [
            (both.as_str(), gpu(1).as_str()),
            (gpu(7).as_str(), NONE),
            (NONE, NONE),
            ("NVIDIA-SMI has failed\n", "NVIDIA-SMI has failed\n"),
        ] {
            assert_eq!(testing::filtered(&mut ListFilter::new(vec![0, 1]), output.as_bytes()), expected);
        }
    }
}
