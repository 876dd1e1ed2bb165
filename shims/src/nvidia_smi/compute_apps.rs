//! The rows of `nvidia-smi --query-compute-apps`.

use super::filter::{OutputFilter, ProcessOwnership};

/// The beginnings of errors that nvidia-smi prints between rows, without a comma.
const ERRORS: [&[u8]; 4] = [b"Unable to ", b"Failed to ", b"No devices ", b"NVIDIA-SMI has failed"];

/// Keeps the rows of the environment's processes, and lines that are no rows: the names of the columns, and errors.
pub(crate) struct ComputeAppsFilter<O> {
    columns: usize,
    pid: usize,
    /// Whether a process's name comes before its pid: then a line without a pid may be the first of a row.
    is_name_first: bool,
    /// Whether it is the last column instead: then the rest of a name follows a row that looks whole.
    is_name_last: bool,
    own: O,
    /// A row of which a process's name has spread the rest over the next lines.
    broken: Vec<u8>,
    /// Whether the last row was left out.
    is_left_out: bool,
}

impl<O: ProcessOwnership> ComputeAppsFilter<O> {
    /// `columns` are those that were asked for, `pid` among them.
    pub(crate) fn new(columns: &[String], own: O) -> Self {
        let pid = columns.iter().position(|column| column == "pid").unwrap_or(0);
        let is_name = |column: &String| column == "name" || column == "process_name";
        let is_name_first = columns[..pid].iter().any(is_name);
        Self {
            columns: columns.len(),
            pid,
            is_name_first,
            is_name_last: !is_name_first && columns.last().is_some_and(is_name),
            own,
            broken: Vec::new(),
            is_left_out: false,
        }
    }

    /// The pid of a row. A comma in a name is written as a question mark: no field holds one.
    fn pid(&self, row: &[u8]) -> Option<u32> {
        self.field(row)?.parse().ok()
    }

    /// The text of the pid's field.
    fn field<'a>(&self, row: &'a [u8]) -> Option<&'a str> {
        let field = row.split(|byte| *byte == b',').nth(self.pid)?;
        Some(std::str::from_utf8(field).ok()?.trim())
    }
}

impl<O: ProcessOwnership> OutputFilter for ComputeAppsFilter<O> {
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        if self.broken.is_empty() && !line.contains(&b',') {
            if ERRORS.iter().any(|error| line.starts_with(error)) {
                out.extend_from_slice(line);
                return;
            }
            if self.is_name_last {
                // The rest of the last row's name.
                if !self.is_left_out {
                    out.extend_from_slice(line);
                }
                return;
            }
        }
        self.broken.extend_from_slice(line);
        let fields = self.broken.split(|byte| *byte == b',').count();
        let is_row = self.is_name_first || self.pid(&self.broken).is_some();
        if fields >= self.columns || !is_row {
            self.end(out);
        }
    }

    fn is_answer(&self, line: &[u8]) -> bool {
        self.field(line) == Some("pid") || self.pid(line).is_some()
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let row = std::mem::take(&mut self.broken);
        let pid = self.pid(&row);
        self.is_left_out = pid.is_some_and(|pid| (self.own)(&[pid]).is_some_and(|own| !own.contains(&pid)));
        if !self.is_left_out {
            out.extend_from_slice(&row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::testing;
    use super::*;

    /// What is kept of an output when process 7 is the environment's own.
    fn kept(columns: &str, output: &str) -> String {
        let columns: Vec<String> = columns.split(',').map(str::to_owned).collect();
        let mut filter = ComputeAppsFilter::new(&columns, testing::own(&[7]));
        testing::filtered(&mut filter, output.as_bytes())
    }

    #[test]
    fn rows_of_other_processes_are_left_out() {
        for (columns, output, expected) in [
            (
                "gpu_uuid,pid,name",
                "gpu_uuid, pid, process_name\nGPU-A, 7, a\nGPU-A, 8, b\nGPU-B, 7, a\n",
                "gpu_uuid, pid, process_name\nGPU-A, 7, a\nGPU-B, 7, a\n",
            ),
            ("pid", "7\n8\n77\n", "7\n"),
            ("name,pid", "a, 8\na, 7", "a, 7"),
            (
                "pid,nosuch",
                "Field \"nosuch\" is not a valid field to query.\n\n",
                "Field \"nosuch\" is not a valid field to query.\n\n",
            ),
            ("pid", "No devices were found\n", "No devices were found\n"),
            // A name of several lines goes with its row.
            (
                "pid,name,used_memory",
                "8, new\nline, 3 MiB\n7, own\nline, 3 MiB\n8, x, 3 MiB\n",
                "7, own\nline, 3 MiB\n",
            ),
            (
                "process_name,pid",
                "process_name, pid\nnew\nline?, 8\nown\nline, 7\nx, 8\n",
                "process_name, pid\nown\nline, 7\n",
            ),
            ("pid,name", "8, new\nline\n7, own\nline\n", "7, own\nline\n"),
            ("pid,name", "8, x\n7\n9, other\n", ""),
            // An error is shown, too.
            ("name,pid", "No devices were found\n", "No devices were found\n"),
            ("name,pid", "a, 7\nUnable to reach GPU-B\na, 8\n", "a, 7\nUnable to reach GPU-B\n"),
            ("pid,name", "8, a\nUnable to reach GPU-B\n", "Unable to reach GPU-B\n"),
        ] {
            assert_eq!(kept(columns, output), expected, "{columns}");
        }
    }

    #[test]
    fn rows_of_a_real_driver_are_left_out() {
        let output = include_str!("../../../tests/fixtures/nvidia-smi/580-query-compute-apps.txt");
        let own = output.replace(", 621, ", ", 7, ");
        let kept = kept("gpu_uuid,pid,process_name,used_gpu_memory", &own);
        let expected: Vec<&str> =
            own.lines().enumerate().filter(|(number, _)| [0, 2].contains(number)).map(|(_, line)| line).collect();
        assert_eq!(kept.lines().collect::<Vec<_>>(), expected);
    }
}
