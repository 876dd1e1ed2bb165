use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn mode_of(line: &str) -> Mode {
    mode(&words(line))
}

#[test]
fn every_command_line_has_its_mode() {
    let columns = |columns: &[&str]| Mode::ComputeApps(columns.iter().map(ToString::to_string).collect());
    for (lines, expected) in [
        (
            "| -l 1 | -l | -lms 500 | --loop=1 | -i 0 | --id=0 -f out | -i -1 | -g 0 | --gpu=0 -l | \
             -col 2 | --show-all-processes",
            Mode::Table,
        ),
        ("-L | --list-gpus", Mode::List),
        (
            "-h | --help | --help-query-gpu | --version | -B | --dtd | -q -u | -u | -t 0 | \
             --toggle-led=0 -i 1 | drain -h | replay -f x | soc -q | nosuch -h | topo -m | \
             topo -mp | topo -p2p r | topo | dmon -h | mig --help",
            Mode::Untouched,
        ),
        (
            "-q | -q -d MEMORY | -a | --all-gpus -i 0 | --get-hostname | --query --display=PIDS | \
             --query-gpu=index --format=csv | --query-gpu index | --query-supported-clocks=gr | \
             --query-remapped-rows=x | --query-accounted-apps=pid | --query-retired-pages=x | \
             --query-compute-apps=gpu_uuid,name --format=csv | -gvfd",
            Mode::Query,
        ),
        ("-q -x | -x -q -l 1 | --query --xml-format | -q -x --dtd | -a -x", Mode::Xml),
        (
            "--query-compute-apps=gpu_uuid,pid --format=csv | \
             --format=csv --query-compute-apps gpu_uuid,pid",
            columns(&["gpu_uuid", "pid"]),
        ),
        (
            "-pm 1 | -pm=1 | --persistence-mode=0 | -pl 300 | -c 0 | -e 1 | -r | --gpu-reset | -mig 1 | \
             -lgc 1500,1500 | -ac 2000,800 | -rac | -caa | -pm 1 -h | -pm 1 -u | -r --nosuch | \
             --auto-boost-default=0 | -p 0 | -svfd 1 | --set-vf-derate=1 | -lmci 1 --nosuch",
            Mode::Setting,
        ),
        (
            "topo -p -i 0,1 | topo -n 1 -i 0 | topo -gnid --id=0",
            Mode::Subcommand(Subcommand::Named { options: &["-i", "--id"], changes: false }),
        ),
        (
            "drain -p 0000:07:00.0 -m 1 | drain -q --pciid=0000:07:00.0 | drain | drain -p0000:07:00.0 -m 1",
            Mode::Subcommand(Subcommand::Named { options: &["-p", "--pciid"], changes: true }),
        ),
        ("--nosuch | -q --nosuch=1 -i 0 | --nosuch -h", Mode::Unknown("--nosuch".to_owned())),
        ("nosuch | nosuch --set 1", Mode::Unknown("nosuch".to_owned())),
        (
            "nvlink -s | c2c -s | pci | power-smoothing -ppd | power-profiles -l | prm -l",
            Mode::Subcommand(Subcommand::One),
        ),
        (
            "mig -lgi | clocks --sync-boost-list | vgpu | gpm | compute-policy -l | boost-slider -l | \
             conf-compute -gc | rusd -spm all",
            Mode::Subcommand(Subcommand::List { changes: true }),
        ),
        (
            "daemon | base-clocks | power-hint -l | stats | encodersessions | fbcsessions -l 1 | cper | event-log",
            Mode::Subcommand(Subcommand::List { changes: false }),
        ),
    ] {
        for line in lines.split('|') {
            assert_eq!(mode_of(line), expected, "{line}");
        }
    }
}

#[test]
fn devices_go_where_ids_are_or_in_front() {
    for (line, expected) in [
        ("", "-i 1,3"),
        ("-pm 1", "-i 1,3 -pm 1"),
        ("-l", "-i 1,3 -l"),
        ("-q -i 0 -d PIDS", "-q -i 1,3 -d PIDS"),
        ("--id=0 -q", "--id=1,3 -q"),
        ("-i=0", "-i=1,3"),
        ("--id 0", "--id 1,3"),
        ("-i 0 -i 1", "-i 1,3 -i 1,3"),
        ("-i -1", "-i 1,3"),
        ("dmon -c 1", "dmon -i 1,3 -c 1"),
        ("dmon", "dmon -i 1,3"),
        ("mig -i 0 -lgi", "mig -i 1,3 -lgi"),
        ("-pm 1 -i", "-i 1,3 -pm 1 -i"),
        ("-g 0 -r", "-g 1,3 -r"),
        ("--gpu=0", "--gpu=1,3"),
        ("-r -g=0", "-r -g=1,3"),
        // Among subcommands -g is a question.
        ("gpm -g", "gpm -i 1,3 -g"),
        ("nvlink -g 0 -i 2", "nvlink -g 0 -i 1,3"),
        ("prm --index 0 -l", "prm --index 1,3 -l"),
    ] {
        assert_eq!(with_devices(&words(line), &[vec![1, 3]]), words(expected), "{line}");
    }
    assert_eq!(with_devices(&words("-i 0 -pm 1 --id=1"), &[vec![1], vec![3]]), words("-i 1 -pm 1 --id=3"));
}

#[test]
fn a_file_is_taken_out_in_every_form() {
    for (line, file, rest) in [
        ("-f out -l 1", Some("out"), "-l 1"),
        ("-f=out", Some("out"), ""),
        ("-q --filename=a=b -x", Some("a=b"), "-q -x"),
        ("--filename out", Some("out"), ""),
        ("-q -f", None, "-q -f"),
        ("-q", None, "-q"),
    ] {
        let mut arguments = words(line);
        assert_eq!(take_file(&mut arguments), file.map(OsString::from), "{line}");
        assert_eq!(arguments, words(rest), "{line}");
    }
}

#[test]
fn settings_are_recognised_without_their_documentation() {
    // Each option of the real program's help under "device modification", whatever else is on the line.
    for setting in SETTINGS.split_whitespace() {
        assert_eq!(mode_of(&format!("{setting} 1")), Mode::Setting, "{setting}");
        assert_eq!(mode_of(&format!("-q {setting}=1")), Mode::Setting, "{setting}");
    }
}
