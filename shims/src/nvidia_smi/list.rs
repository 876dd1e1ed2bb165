//! The list of GPUs, `nvidia-smi -L`.

use super::filter::Filter;

/// Keeps the lines of some GPUs, with those of the MIG devices under them, and lines that are about no GPU.
#[derive(Debug)]
pub(crate) struct List {
    kept: Vec<u32>,
    is_kept: bool,
}

impl List {
    pub(crate) const fn new(kept: Vec<u32>) -> Self {
        Self {
            kept,
            is_kept: true,
        }
    }
}

impl Filter for List {
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

    fn end(&mut self, _: &mut Vec<u8>) {}
}

/// The index in a line such as `GPU 0: NVIDIA A100`.
pub(crate) fn gpu_of(line: &[u8]) -> Option<u32> {
    let line = line.strip_prefix(b"GPU ")?;
    let digits = line.split(|byte| *byte == b':').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
