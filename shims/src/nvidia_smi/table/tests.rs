use std::collections::HashSet;

use super::super::filter::testing;
use super::*;

/// What is shown of an output when device 0 may use 4000 MiB, device 1 everything, and these processes are own.
fn shown(output: &[u8], own: &[u32]) -> String {
    let devices = BTreeMap::from([(0, Some(4000 << 20)), (1, None)]);
    testing::filtered(&mut SummaryFilter::new(devices, testing::own(own)), output)
}

fn notes(output: &[u8], own: &[u32]) -> Vec<String> {
    let devices = BTreeMap::from([(0, None), (1, None)]);
    let mut table = SummaryFilter::new(devices, testing::own(own));
    testing::filtered(&mut table, output);
    table.notes()
}

#[test]
fn what_is_left_out_is_reported_for_each_device_and_not_what_only_draws() {
    assert!(notes(TABLE_470.as_bytes(), &[]).is_empty());
    assert!(notes(TABLE_535.as_bytes(), &[4242]).is_empty());
    let both = [
        "8.0 GiB of device 0 are used by others: 'genv who 0' tells more",
        "8.0 GiB of device 1 are used by others: 'genv who 1' tells more",
    ];
    assert_eq!(notes(TABLE_535.as_bytes(), &[]), both);
    // The last of two tables counts.
    let twice = [TABLE_550, TABLE_550].concat();
    assert_eq!(notes(twice.as_bytes(), &[]), both);
    let draws = TABLE_550.replace("  M+C+G ", "      G ");
    assert!(draws != TABLE_550 && notes(draws.as_bytes(), &[]).is_empty());
    let untold = TABLE_550.replace("8192MiB", "    N/A");
    assert_eq!(notes(untold.as_bytes(), &[])[0], "device 0 is used by others: 'genv who 0' tells more");
}

fn difference(before: &str, after: &str) -> String {
    let only = |sign: char, these: &str, others: &str| -> String {
        let others: Vec<&str> = others.lines().collect();
        let lines = these.lines().filter(|line| !others.contains(line));
        lines.map(|line| format!("{sign}{line}\n")).collect()
    };
    only('-', before, after) + &only('+', after, before)
}

const TABLE_470: &str = include_str!("../../../../tests/fixtures/nvidia-smi/470-table.txt");
const TABLE_535: &str = include_str!("../../../../tests/fixtures/nvidia-smi/535-table.txt");
const TABLE_550: &str = include_str!("../../../../tests/fixtures/nvidia-smi/550-table.txt");
/// Of a real driver: four processes on one H200.
const TABLE_580: &str = include_str!("../../../../tests/fixtures/nvidia-smi/580-table.txt");

#[test]
fn a_table_of_idle_devices_changes_by_the_limit_alone() {
    assert_eq!(
        difference(TABLE_470, &shown(TABLE_470.as_bytes(), &[])),
        // The device without a limit still has this line.
        "+| N/A   33C    P0    72W / 400W |      0MiB /  4000MiB |      0%      Default |
"
    );
    assert_eq!(shown(TABLE_470.as_bytes(), &[]).matches("/ 40960MiB").count(), 1);
}

#[test]
fn own_processes_are_what_the_memory_shows() {
    assert_eq!(
        difference(TABLE_535, &shown(TABLE_535.as_bytes(), &[4242])),
        "-| N/A   33C    P0              72W / 400W |      0MiB / 40960MiB |      0%      Default |
-| N/A   33C    P0              72W / 400W |      0MiB / 40960MiB |      0%      Default |
+| N/A   33C    P0              72W / 400W |   8192MiB /  4000MiB |      0%      Default |
+| N/A   33C    P0              72W / 400W |   8192MiB / 40960MiB |      0%      Default |
"
    );
    assert_eq!(
        difference(TABLE_550, &shown(TABLE_550.as_bytes(), &[4242])),
        "-| N/A   33C    P0             72W /  400W |       0MiB /  40960MiB |      0%      Default |
-| N/A   33C    P0             72W /  400W |       0MiB /  40960MiB |      0%      Default |
+| N/A   33C    P0             72W /  400W |    8192MiB /   4000MiB |      0%      Default |
+| N/A   33C    P0             72W /  400W |    8192MiB /  40960MiB |      0%      Default |
"
    );
}

#[test]
fn some_of_many_processes_are_the_environments() {
    assert_eq!(
        difference(TABLE_580, &shown(TABLE_580.as_bytes(), &[614, 631])),
        "-| N/A   62C    P0            693W /  700W |   20734MiB / 143771MiB |    100%      Default |
-|    0   N/A  N/A             621      C   /opt/train/.venv/bin/python3           2696MiB |
-|    0   N/A  N/A             628      C   /opt/train/.venv/bin/python3           5098MiB |
+| N/A   62C    P0            693W /  700W |   12914MiB /   4000MiB |    100%      Default |
"
    );
}

#[test]
fn without_own_processes_the_list_says_so_in_its_width() {
    for table in [TABLE_535, TABLE_550, TABLE_580] {
        let shown = shown(table.as_bytes(), &[]);
        let widths: HashSet<usize> = shown.lines().filter(|line| line.starts_with(['|', '+'])).map(str::len).collect();
        assert_eq!(widths.len(), 1, "{shown}");
        assert!(!shown.contains("MiB |\n"), "{shown}");
        assert_eq!(shown.matches("|  No running processes found  ").count(), 1, "{shown}");
    }
}

#[test]
fn each_table_of_a_loop_is_shown_when_it_is_whole() {
    let own = testing::own(&[]);
    let mut filter = SummaryFilter::new(BTreeMap::from([(0, None)]), own);
    let expected = shown(TABLE_550.as_bytes(), &[]).replace(" 4000MiB", "40960MiB");
    for _ in 0..2 {
        let mut out = Vec::new();
        for line in TABLE_550.split_inclusive('\n') {
            filter.line(line.as_bytes(), &mut out);
        }
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

/// A part of a newer table: its list of processes has wider columns.
fn newer(rows: &str) -> String {
    format!(
        "+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8   |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
|   1  NVIDIA A100-SXM4-40GB          On  | 00000000:0F:00.0 Off |                    0 |
| N/A   33C    P0              72W / 400W |    512MiB / 40960MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+
+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|  GPU   GI   CI              PID   Type   ProcessRow name                      GPU Memory |
|        ID   ID                                                             Usage      |
|=======================================================================================|
{rows}+---------------------------------------------------------------------------------------+
"
    )
}

/// A row of the newer table on device 1, as wide as printf makes it.
fn row(pid: u32, name: &str, memory: &str) -> String {
    format!("|    1   N/A  N/A     {pid:>8}      C   {name:<30}{memory:>16} |\n")
}

#[test]
fn a_name_with_line_breaks_goes_with_its_row() {
    let hostile = "x |\n|    1   N/A  N/A    7 C 9MiB |";
    let own = row(4_194_304, "a\u{1b}[31m|b", "100MiB");
    let table = newer(&[row(8, hostile, "200MiB"), row(9, "\n+--+", "1MiB"), own.clone()].concat());
    let expected = newer(&own.replace('\u{1b}', "?")).replace(" 512MiB", " 100MiB");
    assert_eq!(shown(table.as_bytes(), &[7, 4_194_304]), expected);
}

#[test]
fn memory_that_is_not_measured_is_not_zero() {
    let table = newer(&[row(7, "a", "N/A"), row(70, "b", "5MiB")].concat());
    let expected = table.replace(" 512MiB", "    N/A");
    assert_eq!(shown(table.as_bytes(), &[7, 70]), expected);
}

#[test]
fn compute_instances_of_one_gpu_instance_show_the_memory_that_they_share() {
    let table = |gpu: u32, shared: u32, alone: u32, rows: &str| {
        newer(rows).replace(
            "    512MiB / 40960MiB |      0%      Default |\n+-----------------------------------------+----------------------+----------------------+\n",
            &format!(
                "{:>10} / 40960MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+

+---------------------------------------------------------------------------------------+
| MIG devices:                                                                          |
+------------------+--------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |            Shared Memory-Usage |        Vol|      Shared           |
|      ID  ID  Dev |              Shared BAR1-Usage | SM     Unc| CE ENC DEC OFA JPG    |
|==================+================================+===========+=======================|
|  1    2   0   0  | {shared:>17} / 40960MiB  | 14      0 |  3   0    1    0    0 |
|                  |               7MiB / 65536MiB  |           |                       |
+------------------+--------------------------------+-----------+-----------------------+
|  1    2   1   1  | {shared:>17} / 40960MiB  | 28      0 |  3   0    1    0    0 |
|                  |               7MiB / 65536MiB  |           |                       |
+------------------+--------------------------------+-----------+-----------------------+
|  1    9   0   2  | {alone:>17} / 10240MiB  | 14      0 |  1   0    0    0    0 |
|                  |               7MiB / 65536MiB  |           |                       |
+------------------+--------------------------------+-----------+-----------------------+
",
                format!("{gpu}MiB"),
                shared = format!("{shared}MiB"),
                alone = format!("{alone}MiB"),
            ),
        )
    };
    let row = |pid, instance: &str, memory| row(pid, "a", memory).replace("N/A  N/A", instance);
    let own = [row(7, "  2    0", "10MiB"), row(7, "  2    1", "20MiB"), row(7, "  9    0", "40MiB")].concat();
    let others = [row(8, "  2    0", "100MiB"), row(8, "  9    0", "200MiB")].concat();
    let before = table(999, 139, 249, &[own.as_str(), &others].concat());
    assert_eq!(shown(before.as_bytes(), &[7]), table(70, 30, 40, &own));
}

#[test]
fn older_tables_know_no_instances() {
    let table = |memory: &str, row: &str| {
        format!(
            "+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.226.00   Driver Version: 418.226.00   CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   1  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
| N/A   33C    P0    37W / 300W | {memory:>9} / 16130MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
                                                                               
+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   ProcessRow name                             Usage      |
|=============================================================================|
{row}+-----------------------------------------------------------------------------+
"
        )
    };
    let row = |pid: u32| format!("|    1 {pid:>9}      C   {:<39} {:>10} |\n", "python", "1000MiB");
    let both = [row(7), row(31_234)].concat();
    assert_eq!(shown(table("3000MiB", &both).as_bytes(), &[7]), table("1000MiB", &row(7)));
}

#[test]
fn a_device_that_does_not_list_its_processes_has_no_known_memory() {
    let unsupported = format!("|    1   {:<79}|\n", "Not Supported");
    let expected = newer(&unsupported).replace(" 512MiB", "    N/A");
    for rows in [unsupported.clone(), unsupported.clone() + &row(8, "other", "5MiB")] {
        assert_eq!(shown(newer(&rows).as_bytes(), &[]), expected);
    }
    assert_eq!(shown(newer("").as_bytes(), &[]), newer("").replace(" 512MiB", "    N/A"));
    let elsewhere = unsupported.replace("|    1", "|    0");
    let expected = newer(&elsewhere).replace(" 512MiB", "   0MiB");
    assert_eq!(shown(newer(&elsewhere).as_bytes(), &[]), expected);
}

#[test]
fn devices_side_by_side_keep_their_memory_and_lose_the_processes_of_others() {
    let beside = |line: &str| match line {
        line if line.starts_with(['|', '+']) => format!("{line} {line}\n"),
        line => format!("{line}\n"),
    };
    let (gpus, processes) = TABLE_580.split_at(TABLE_580.find("\n\n").unwrap() + 2);
    let gpus: String = gpus.lines().map(beside).collect();
    assert_eq!(gpus.matches("Memory-Usage").count(), 2);
    let shown = shown(format!("{gpus}{processes}").as_bytes(), &[628]);
    assert!(shown.starts_with(&gpus), "{shown}");
    assert_eq!(shown.matches("python3").count(), 1, "{shown}");
}

#[test]
fn what_is_no_table_or_has_unknown_processes_stays_as_it_is() {
    let mut filter = SummaryFilter::new(BTreeMap::from([(0, Some(1 << 30))]), |_: &[u32]| None);
    assert_eq!(testing::filtered(&mut filter, TABLE_550.as_bytes()), TABLE_550);
    for text in [
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n",
        "+----+\n| a |\n",
        "+-----------------+\n| NVIDIA-SMI 999 |\n| something else |\n+-----------------+\n| NVIDIA-SMI 999 |\n",
        "+----+\n| Processes: |\n|====|\n",
    ] {
        assert_eq!(shown(text.as_bytes(), &[]), text);
    }
    // A table that breaks off.
    let half = &TABLE_550[..TABLE_550.len() / 2];
    assert_eq!(shown(half.as_bytes(), &[]), half);
}

#[test]
fn a_table_of_an_unknown_layout_stays_as_it_is_with_a_note() {
    let table = newer(&row(8, "other", "5MiB"));
    let header = "|  GPU   GI   CI              PID   Type";
    for unknown in [
        // The pid is written from the left, or before the GPU, or in no column of its own.
        table.replace("       8      C", "        4194304"),
        table
            .replace(header, "|  PID   GPU                       Type")
            .replace("|    1   N/A  N/A            8", "|    8     1                  "),
        table.replace(header, "|  GPU   GI   CI          Process   Type"),
        table.replace("| Processes:", "| Running:  "),
        // A row that is about no device.
        newer(&format!("|    {:<83}|\n", "Unknown Error")),
    ] {
        assert_ne!(unknown, table);
        assert_eq!(shown(unknown.as_bytes(), &[]), unknown);
        assert_eq!(notes(unknown.as_bytes(), &[]), [UNKNOWN]);
    }
    assert!(notes("No devices were found\n".as_bytes(), &[]).is_empty());
}

/// A table in which one of the columns begins so much further to the right: of the GPUs, or else of the processes.
fn widened(table: &str, processes: bool, choice: usize, by: usize) -> String {
    let title = table.find("| Processes:").unwrap();
    let (gpus, list) = table.split_at(table[..title].trim_end().rfind('\n').unwrap() + 1);
    let part = if processes { list } else { gpus };
    let drawn = part.lines().filter(|line| line.starts_with(['|', '+']));
    let drawn: Vec<&[u8]> = drawn.map(str::as_bytes).collect();
    let is_place = |place: usize| {
        if processes {
            drawn.iter().all(|line| b" -=".contains(&line[place]))
        } else {
            drawn.iter().filter(|line| line[place - 1] == b'|').count() > 3
        }
    };
    let places: Vec<usize> = (1..drawn[0].len() - 1).filter(|it| is_place(*it)).collect();
    let place = places[choice % places.len()];
    let wider = |line: &str, place: usize| {
        let Some(end) = line.len().checked_sub(1).filter(|_| line.starts_with(['|', '+'])) else {
            return format!("{line}\n");
        };
        let bytes = line.as_bytes();
        // What spans all columns is filled at its end.
        let is_cell = processes || b"|+".contains(&bytes[place - 1]);
        let (left, right) = line.split_at(if is_cell { place } else { end });
        let filler = match bytes[left.len() - usize::from(!is_cell)] {
            rule @ (b'-' | b'=') => char::from(rule),
            _ => ' ',
        };
        format!("{left}{}{right}\n", filler.to_string().repeat(by))
    };
    let width = drawn[0].len() - 1;
    let line = |line: &str, widened: bool| wider(line, if widened { place } else { width });
    let gpus = gpus.lines().map(|it| line(it, !processes));
    gpus.chain(list.lines().map(|it| line(it, processes))).collect()
}

/// The words of each line of a table, without what draws it.
fn words(table: &str) -> Vec<Vec<&str>> {
    let drawing = |letter: char| " +-=|".contains(letter);
    let lines = table.lines();
    lines
        .map(|line| {
            let words = line.split(drawing).filter(|word| !word.is_empty());
            words.collect()
        })
        .collect()
}

proptest::proptest! {
    #[test]
    fn no_output_ends_the_program(
        lines in proptest::collection::vec("[+|=-]{0,3}( ?(Processes:|PID|Memory-Usage|NVIDIA-SMI|7|MiB|/|N/A|\\|)){0,9}", 0..20),
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40),
    ) {
        shown(lines.join("\n").as_bytes(), &[7]);
        shown(&[newer("").as_bytes(), &bytes, b"\n+-+\n"].concat(), &[7]);
        let table = newer(&row(7, "a", "5MiB"));
        let cut = table.len() * bytes.len() / 40;
        shown(&table.as_bytes()[..cut], &[7]);
        shown(&[&table.as_bytes()[..cut], &bytes, &table.as_bytes()[cut..]].concat(), &[7]);
    }

    #[test]
    fn columns_may_be_anywhere(
        table in proptest::sample::select(vec![TABLE_470, TABLE_535, TABLE_550, TABLE_580]),
        processes in proptest::prelude::any::<bool>(),
        choice in 0_usize..200,
        by in 1_usize..30,
        own in proptest::sample::subsequence(vec![614, 621, 628, 631, 4242], 0..5),
    ) {
        let wider = widened(table, processes, choice, by);
        let expected = shown(table.as_bytes(), &own);
        let shown = shown(wider.as_bytes(), &own);
        proptest::prop_assert_eq!(words(&shown), words(&expected), "{}", shown);
        let width = wider.lines().find(|line| line.starts_with('+')).unwrap().len();
        for line in shown.lines().filter(|line| line.starts_with(['|', '+'])) {
            proptest::prop_assert_eq!(line.len(), width, "{}", shown);
        }
    }
}
