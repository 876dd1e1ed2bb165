//! The options and subcommands of nvidia-smi, up to driver 580.

use super::arguments::{ExtraDevices, Subcommand};

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
    --reset-application-clocks --auto-boost-test";

/// Queries whose output stays unchanged.
pub(super) const QUERIES: &str = "\
    --query-gpu --query-supported-clocks --query-remapped-rows --query-accounted-apps --query-retired-pages \
    --get-hostname";

/// Queries whose output is rewritten, or can be with another option.
pub(super) const QUESTIONS: &str = "-L --list-gpus -q --query -a --all-gpus --query-compute-apps";

/// Options of the format.
pub(super) const MANNERS: &str = "\
    -i --id -g --gpu -f --filename -l --loop -lms --loop-ms -col --columns -x --xml-format -d --display --format \
    -eow --error-on-warning --debug";

/// The devices of a subcommand. `None`: it is unknown, or takes no devices.
pub(super) fn subcommand(name: &str) -> Option<Subcommand> {
    const fn list(changes: bool) -> Subcommand {
        Subcommand::List { changes }
    }
    Some(match name {
        "dmon" => Subcommand::ShortList { most: 16, more: None },
        "pmon" => {
            Subcommand::ShortList { most: 4, more: Some(ExtraDevices { variable: "NVSMI_SHOW_ALL_DEVICES", most: 16 }) }
        }
        "topo" => Subcommand::Topology,
        "nvlink" | "c2c" | "pci" | "power-smoothing" | "power-profiles" | "prm" => Subcommand::One,
        "daemon" | "stats" | "base-clocks" | "power-hint" | "encodersessions" | "fbcsessions" => list(false),
        "mig" | "clocks" | "vgpu" | "gpm" | "compute-policy" | "boost-slider" | "conf-compute" => list(true),
        _ => return None,
    })
}
