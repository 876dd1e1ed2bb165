//! The options and subcommands of nvidia-smi, up to driver 610, by what the shim does with them. One that is not here
//! may be a setting of a later driver.

use super::arguments::{ExtraDevices, Mode, Subcommand};

/// Options that change devices, with undocumented ones that the programs still accept.
pub(super) const SETTINGS: &str = "\
    -pm --persistence-mode -e --ecc-config -p --reset-ecc-errors -c --compute-mode --gom -r --gpu-reset -vm \
    --virt-mode -lgc --lock-gpu-clocks -m --mode -rgc --reset-gpu-clocks -lmc --lock-memory-clocks -rmc \
    --reset-memory-clocks -lmcd --lock-memory-clocks-deferred -rmcd --reset-memory-clocks-deferred -ac \
    --applications-clocks -rac --reset-applications-clocks -acp --applications-clocks-permission -pl --power-limit \
    -sc --scope -cc --cuda-clocks -am --accounting-mode -caa --clear-accounted-apps --auto-boost-default \
    --auto-boost-permission -mig --multi-instance-gpu -gtt --gpu-target-temp -dm --driver-model -fdm \
    --force-driver-model -den --dram-encryption --set-hostname -psl --performance-state-lock --perf-limit \
    --lock-clocks --adjust-clock-frequency --adjust-memory-clock-frequency --application-clocks \
    --reset-application-clocks --auto-boost-test -svfd --set-vf-derate -lmci --lock-memory-clocks-info";

/// Queries whose output stays unchanged.
pub(super) const QUERIES: &str = "\
    --query-gpu --query-supported-clocks --query-remapped-rows --query-accounted-apps --query-retired-pages \
    --get-hostname -gvfd --get-vf-derate";

/// Queries whose output is rewritten, or can be with another option.
pub(super) const QUESTIONS: &str = "-L --list-gpus -q --query -a --all-gpus --query-compute-apps";

/// Options of the format.
pub(super) const MANNERS: &str = "\
    -i --id -g --gpu -f --filename -l --loop -lms --loop-ms -col --columns -x --xml-format -d --display --format \
    -eow --error-on-warning --debug --show-all-processes";

/// Options about no device: help, versions, excluded devices, and units, among which ids mean no devices. Beside them
/// there is `--help-…` for each query.
pub(super) const PASSED: &str = "-h --help --version -B --list-excluded-gpus --dtd -u --unit -t --toggle-led";

/// The mode of a subcommand. `None`: it is not known.
pub(super) fn subcommand(name: &str) -> Option<Mode> {
    const fn list(changes: bool) -> Subcommand {
        Subcommand::List { changes }
    }
    Some(Mode::Subcommand(match name {
        "dmon" => Subcommand::ShortList { most: 16, more: None },
        "pmon" => {
            Subcommand::ShortList { most: 4, more: Some(ExtraDevices { variable: "NVSMI_SHOW_ALL_DEVICES", most: 16 }) }
        }
        "topo" => Subcommand::Named { options: &["-i", "--id"], changes: false },
        "drain" => Subcommand::Named { options: &["-p", "--pciid"], changes: true },
        "nvlink" | "c2c" | "pci" | "power-smoothing" | "power-profiles" | "prm" => Subcommand::One,
        "daemon" | "stats" | "base-clocks" | "power-hint" | "encodersessions" | "fbcsessions" | "cper"
        | "event-log" => list(false),
        "mig" | "clocks" | "vgpu" | "gpm" | "compute-policy" | "boost-slider" | "conf-compute" | "rusd" => list(true),
        // A file of the daemon, and the processor of a Tegra.
        "replay" | "soc" => return Some(Mode::Untouched),
        _ => return None,
    }))
}
