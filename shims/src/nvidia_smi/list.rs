//! The list of GPUs, `nvidia-smi -L`.

use super::filter::OutputFilter;
use crate::devices::gpu_of;

/// Keeps the lines of some GPUs, with those of the MIG devices under them, and lines that are about no GPU.
#[derive(Debug)]
pub(crate) struct ListFilter {
    kept: Vec<u32>,
    is_kept: bool,
}

impl ListFilter {
    pub(crate) const fn new(kept: Vec<u32>) -> Self {
        Self { kept, is_kept: true }
    }
}

impl OutputFilter for ListFilter {
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        match gpu_of(line) {
            Some(gpu) => self.is_kept = self.kept.contains(&gpu),
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

    fn end(&mut self, _: &mut Vec<u8>) {}
}
