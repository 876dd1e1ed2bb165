//! The summary, rewritten: the environment's memory in place of the device's, and only its processes.
//!
//! The header, which every version of the driver prints, has the positions of the columns. Text that is not part of a
//! table stays unchanged.

use std::collections::BTreeMap;
use std::ops::Range;

use genv_core::outside;

use super::filter::{OutputFilter, ProcessOwnership};

/// The number of columns by which a row may be narrower than its table.
const ROW_SLACK: usize = 4;

/// The note about a table that stays unchanged.
const UNKNOWN: &str = "the shim does not know the layout of this table, and leaves it unchanged: it shows the memory and the \
                       processes of all users of these devices. 'genv who' tells whose they are";

/// Rewrites one table after another.
pub(crate) struct SummaryFilter<O> {
    /// Devices of the environment, with the memory that it may use of each, in bytes, where that is limited.
    devices: BTreeMap<u32, Option<u64>>,
    own: O,
    /// Memory in MiB that the processes left out hold on each device; absent where the driver does not report it.
    /// Processes with graphics alone do not count.
    others: BTreeMap<u32, Option<u64>>,
    /// The lines of a table that is not yet whole.
    lines: Vec<Vec<u8>>,
    /// The first line of its list of processes.
    processes: Option<usize>,
    /// Whether a table had an unknown layout.
    is_unknown: bool,
}

impl<O: ProcessOwnership> SummaryFilter<O> {
    pub(crate) const fn new(devices: BTreeMap<u32, Option<u64>>, own: O) -> Self {
        Self { devices, own, others: BTreeMap::new(), lines: Vec::new(), processes: None, is_unknown: false }
    }

    /// The content that the last table leaves out, one line for each device, and the note about an unknown layout.
    pub(crate) fn notes(&self) -> Vec<String> {
        let line = |(device, memory): (&u32, &Option<u64>)| {
            let used = match memory {
                Some(mebibytes) => {
                    let memory = outside::memory(mebibytes.saturating_mul(1 << 20));
                    format!("{memory} of device {device} are used by others")
                }
                None => format!("device {device} is used by others"),
            };
            format!("{used}: 'genv who {device}' tells more")
        };
        let unknown = self.is_unknown.then(|| UNKNOWN.to_owned());
        self.others.iter().map(line).chain(unknown).collect()
    }

    /// A process's name may hold line breaks: its row goes on until it is about as wide as the rule above the list,
    /// which no part of it is, for names are cut to their column.
    fn last_row_is_short(&self) -> bool {
        let list = self.processes.and_then(|rows| self.lines.get(rows - 1..));
        let Some([rule, .., row]) = list else {
            return false;
        };
        row.len() + ROW_SLACK < rule.len()
    }
}

impl<O: ProcessOwnership> OutputFilter for SummaryFilter<O> {
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if self.last_row_is_short()
            && let Some(row) = self.lines.last_mut()
        {
            row.extend_from_slice(line);
            return;
        }
        if begins_with(line, "NVIDIA-SMI") && self.lines.len() > 1 {
            // The previous table has no end, so its format is unknown.
            let border = self.lines.pop();
            self.end(out);
            self.lines.extend(border);
        }
        if self.lines.is_empty() && !is_border(line) {
            out.extend_from_slice(line);
            return;
        }
        self.lines.push(line.to_vec());
        if self.processes.is_some() && is_border(line) {
            self.end(out);
        } else if self.processes.is_none() && is_rule(line) {
            let mut header = self.lines.iter().rev().take(4);
            let lists_processes = header.any(|line| begins_with(line, "Processes:"));
            self.processes = lists_processes.then_some(self.lines.len());
        }
    }

    fn is_answer(&self, line: &[u8]) -> bool {
        is_border(line)
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let mut lines = std::mem::take(&mut self.lines);
        if let Some(first) = self.processes.take() {
            let header = lines[..first].iter().rev().find_map(|line| find(line, "PID"));
            self.is_unknown |= header.is_none();
            if let Some(pid) = header
                && let Some((own, untold)) = self.filter_processes(&mut lines, first, pid.end)
            {
                self.rewrite_memory(&mut lines[..first], &own, &untold);
            }
        } else {
            self.is_unknown |= lines.iter().any(|line| begins_with(line, "NVIDIA-SMI"));
        }
        out.extend(lines.concat());
    }
}

impl<O: ProcessOwnership> SummaryFilter<O> {
    /// Removes the processes of others, and returns the environment's, and the GPUs that do not tell all their processes.
    /// `None`: the processes or the layout are unknown, and the lines stay unchanged.
    fn filter_processes(
        &mut self,
        lines: &mut Vec<Vec<u8>>,
        first: usize,
        pid_end: usize,
    ) -> Option<(Vec<ProcessRow>, Vec<u32>)> {
        let last = lines.len() - usize::from(lines.last().is_some_and(|line| is_border(line)));
        let rows: Vec<Vec<u8>> = lines.drain(first.min(last)..last).collect();
        self.others.clear();
        let mut processes: Vec<_> = rows.iter().map(|row| ProcessRow::read(row, pid_end)).collect();
        let others = rows.iter().zip(&processes).filter(|(row, process)| process.is_none() && !says_none(row));
        let untold: Option<Vec<u32>> = others.map(|(row, _)| untold_gpu(row)).collect();
        let Some(untold) = untold else {
            self.is_unknown = true;
            lines.splice(first..first, rows);
            return None;
        };
        // A driver prints no row at all where all processes are of other pid namespaces.
        let untold = if rows.is_empty() { self.devices.keys().copied().collect() } else { untold };
        let pids: Vec<u32> = processes.iter().flatten().map(|process| process.pid).collect();
        let own = if pids.is_empty() {
            lines.splice(first..first, rows);
            return Some((Vec::new(), untold));
        } else if let Some(own) = (self.own)(&pids) {
            own
        } else {
            lines.splice(first..first, rows);
            return None;
        };
        let is_kept = |process: &Option<ProcessRow>| process.as_ref().is_none_or(|process| own.contains(&process.pid));
        let kept = rows.into_iter().zip(&processes).filter(|(_, process)| is_kept(process));
        let mut kept: Vec<Vec<u8>> = kept.map(|(row, _)| without_controls(row)).collect();
        if kept.is_empty() {
            let width = lines[first - 1].trim_ascii_end().len().saturating_sub(2);
            kept.push(format!("|{:<width$}|\n", "  No running processes found").into_bytes());
        }
        lines.splice(first..first, kept);
        for other in processes.iter().flatten() {
            let Some(device) = other.place.first().filter(|_| other.computes) else {
                continue;
            };
            if !own.contains(&other.pid) {
                let memory = self.others.entry(*device).or_insert(Some(0));
                *memory = memory.zip(other.memory_mebibytes).map(|(a, b)| a + b);
            }
        }
        processes.retain(is_kept);
        Some((processes.into_iter().flatten().collect(), untold))
    }

    /// Replaces the memory of the devices by the environment's, which is not known of the untold GPUs.
    fn rewrite_memory(&self, lines: &mut [Vec<u8>], own: &[ProcessRow], untold: &[u32]) {
        let mut memory = None;
        let mut block = 0;
        let mut is_mig = false;
        for line in 0..lines.len() {
            if is_rule(&lines[line]) {
                memory = MemoryField::read(&lines[block..line]);
                block = line + 1;
            } else if is_border(&lines[line]) || lines[line].starts_with(b"|-") {
                block = line + 1;
            } else if begins_with(&lines[line], "MIG devices:") {
                is_mig = true;
                memory = None;
            } else if let Some(cell) = memory.as_ref().filter(|cell| block + cell.row == line) {
                let id = numbers(&lines[block]);
                let Some(capacity) = id.first().and_then(|gpu| self.devices.get(gpu)) else {
                    continue;
                };
                // The row of a MIG device begins with its GPU, GPU instance and compute instance, and shows the memory
                // of the GPU instance.
                let (place, limit) = if is_mig { (2, None) } else { (1, *capacity) };
                if id.len() >= place {
                    let there = own.iter().filter(|process| process.place.starts_with(&id[..place]));
                    let used: Option<u64> = there.map(|process| process.memory_mebibytes).sum();
                    let used = used.filter(|_| !untold.contains(&id[0]));
                    cell.rewrite(&mut lines[line], used, limit.map(|bytes| bytes >> 20));
                }
            }
        }
    }
}

/// A row of the list of processes.
#[derive(Debug)]
struct ProcessRow {
    pid: u32,
    /// The GPU, and the GPU instance and compute instance where it is split.
    place: Vec<u32>,
    /// Whether its type includes computing.
    computes: bool,
    /// Absent if the driver does not report it.
    memory_mebibytes: Option<u64>,
}

impl ProcessRow {
    /// Parses a row. `None`: the row is not about a process, or has another layout: its pid goes on to the right of the
    /// column, or it has no GPU to the left of it.
    fn read(row: &[u8], pid_end: usize) -> Option<Self> {
        let head = std::str::from_utf8(row.get(1..pid_end)?).ok()?;
        let (place, pid) = head.trim_end().rsplit_once(' ')?;
        let place: Vec<u32> = place.split_whitespace().map_while(|number| number.parse().ok()).collect();
        if place.is_empty() || row.get(pid_end) != Some(&b' ') {
            return None;
        }
        let mut words = row[pid_end..].split(u8::is_ascii_whitespace);
        let kind = words.find(|word| !word.is_empty());
        let memory = last_word(row)?.strip_suffix(b"MiB");
        Some(Self {
            pid: pid.parse().ok()?,
            computes: kind != Some(b"G"),
            place,
            memory_mebibytes: memory.and_then(|memory| std::str::from_utf8(memory).ok()?.parse().ok()),
        })
    }
}

/// Whether a row says that no process runs on any device.
fn says_none(row: &[u8]) -> bool {
    begins_with(row, "No running")
}

/// The GPU of a row about all its processes, such as `Not Supported`. Nothing of a row with the memory of a process, as no
/// such row has, or without a GPU: its layout is unknown.
fn untold_gpu(row: &[u8]) -> Option<u32> {
    let has_memory = last_word(row).is_some_and(|word| word.ends_with(b"MiB") || word == b"N/A");
    numbers(row).first().copied().filter(|_| !has_memory)
}

/// The last word of a row.
fn last_word(row: &[u8]) -> Option<&[u8]> {
    let row = row.trim_ascii_end().strip_suffix(b"|")?.trim_ascii_end();
    row.rsplit(|byte| *byte == b' ').next()
}

/// Where each device's block of lines has its memory, such as `  3072MiB / 40960MiB `.
struct MemoryField {
    row: usize,
    columns: Range<usize>,
}

impl MemoryField {
    fn read(header: &[Vec<u8>]) -> Option<Self> {
        let (row, title) =
            header.iter().enumerate().find_map(|(row, line)| Some((row, find(line, "Memory-Usage")?)))?;
        let line = &header[row];
        if find(&line[title.end..], "Memory-Usage").is_some() {
            // Devices side by side, as with -col: nobody has seen where these have their numbers.
            return None;
        }
        let start = line[..title.start].iter().rposition(|byte| *byte == b'|')? + 1;
        let width = line[start..].iter().position(|byte| *byte == b'|')?;
        Some(Self { row, columns: start..start + width })
    }

    /// Writes what is used, and the limit where it is less than there is. A part of which nothing is known is
    /// not available.
    fn rewrite(&self, line: &mut [u8], used: Option<u64>, limit: Option<u64>) {
        let Some(cell) = line.get_mut(self.columns.clone()) else {
            return;
        };
        let Some(slash) = cell.iter().position(|byte| *byte == b'/') else {
            return;
        };
        let (left, right) = cell.split_at_mut(slash);
        let mebibytes = |mebibytes: u64| format!("{mebibytes}MiB");
        align_right(left, &used.map_or_else(|| "N/A".to_owned(), mebibytes));
        let right = &mut right[1..];
        let total = std::str::from_utf8(right).ok().and_then(|total| total.trim().strip_suffix("MiB"));
        let total: Option<u64> = total.and_then(|total| total.parse().ok());
        if let Some(limit) = limit.filter(|limit| total.is_some_and(|total| *limit < total)) {
            align_right(right, &mebibytes(limit));
        }
    }
}

/// Writes `text` so that it ends where the text that was there ends.
fn align_right(field: &mut [u8], text: &str) {
    let end = field.trim_ascii_end().len();
    if let Some(start) = end.checked_sub(text.len()) {
        field[..start].fill(b' ');
        field[start..end].copy_from_slice(text.as_bytes());
    }
}

/// The numbers with which the text of a line begins.
fn numbers(line: &[u8]) -> Vec<u32> {
    let words = line.get(1..).unwrap_or_default().split(u8::is_ascii_whitespace);
    let words = words.filter(|word| !word.is_empty());
    words.map_while(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect()
}

/// Whether the text of a line begins so.
fn begins_with(line: &[u8], text: &str) -> bool {
    line.strip_prefix(b"|").is_some_and(|line| line.trim_ascii_start().starts_with(text.as_bytes()))
}

fn find(line: &[u8], text: &str) -> Option<Range<usize>> {
    let start = line.windows(text.len()).position(|window| window == text.as_bytes())?;
    Some(start..start + text.len())
}

fn is_border(line: &[u8]) -> bool {
    line.starts_with(b"+-") && line.trim_ascii_end().ends_with(b"+")
}

/// Whether this is the double line under a header.
fn is_rule(line: &[u8]) -> bool {
    line.starts_with(b"|=")
}

/// A row whose process name cannot control a terminal.
fn without_controls(mut row: Vec<u8>) -> Vec<u8> {
    let end = row.trim_ascii_end().len();
    row[..end].iter_mut().filter(|byte| byte.is_ascii_control()).for_each(|byte| *byte = b'?');
    row
}

#[cfg(test)]
mod tests;
