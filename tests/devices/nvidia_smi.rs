//! The real nvidia-smi of three driver generations, on the simulated library.

use std::fs;
use std::path::Path;
use std::process::Output;

use genv_tests::nvml_sim::Simulation;
use genv_tests::tools;

/// PCI buses of the eight GPUs of the machine that the recordings show.
const BUSES: [u8; 8] = [0x07, 0x0f, 0x47, 0x4e, 0x87, 0x90, 0xb7, 0xbd];

/// The machine that the recordings show, as it told them to one generation: the library of that time told 470, which
/// asks for older lists, no processes.
fn recorded_machine(generation: u32) -> Simulation {
    let faults = if generation == 470 { "[{not_supported: [processes]}]" } else { "[]" };
    let mut scenario = "version: 1\nusers: {alice: 1001}\nhosts:\n- name: gpu01\n  driver_version: 550.163.01\n  \
                        cuda_version: \"12.4\"\n  environments: []\n  devices:\n"
        .to_owned();
    for (index, bus) in BUSES.iter().enumerate() {
        scenario += &format!(
            "  - name: NVIDIA A100-SXM4-40GB
    uuid: GPU-12345678-1234-1234-1234-12345678000{index}
    pci_bus_id: 00000000:{bus:02X}:00.0
    memory: 40gi
    memory_reserved: 0b
    memory_used: 0b
    utilization: 0
    temperature: 33
    power: 72
    power_limit: 400
    faults: {faults}
"
        );
    }
    // A process named train.py with 8 GiB on the first two GPUs.
    scenario += "  processes:
  - pid: 4242
    comm: train.py
    user: alice
    devices: [{index: 0, memory: 8gi}, {index: 1, memory: 8gi}]
";
    Simulation::new(&scenario)
}

/// The generations of which Debian has the program.
const GENERATIONS: [u32; 3] = [470, 535, 550];

fn run(generation: u32, simulation: &Simulation, arguments: &[&str]) -> Output {
    let program = tools::program(&format!("nvidia-smi-{generation}"), "nvidia-smi");
    simulation.command(&program).args(arguments).output().expect("nvidia-smi starts")
}

/// What it prints, when it succeeds.
fn print(generation: u32, simulation: &Simulation, arguments: &[&str]) -> String {
    let output = run(generation, simulation, arguments);
    let text = String::from_utf8(output.stdout).expect("nvidia-smi prints UTF-8");
    assert!(output.status.success(), "{:?}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    text
}

fn recording(generation: u32, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/nvidia-smi/{generation}-{name}.txt"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A table without its first line, which is the time.
fn without_time(table: &str) -> &str {
    table.split_once('\n').expect("a table has lines").1
}

#[test]
fn every_generation_prints_what_was_recorded() {
    let devices = "--query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,temperature.gpu";
    let processes = "--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory";
    for generation in GENERATIONS {
        let machine = recorded_machine(generation);
        for (name, arguments) in [
            ("list", &["-L"][..]),
            ("query-gpu", &["-i", "0,1", devices, "--format=csv"]),
            ("query-compute-apps", &["-i", "0,1", processes, "--format=csv"]),
        ] {
            assert_eq!(print(generation, &machine, arguments), recording(generation, name), "{generation}: {name}");
        }
        let table = print(generation, &machine, &["-i", "0,1"]);
        assert_eq!(without_time(&table), without_time(&recording(generation, "table")), "{generation}");
    }
}

#[test]
fn no_device_is_a_failure_with_the_recorded_text() {
    for (generation, code) in [(470, 2), (535, 6), (550, 6)] {
        let output = run(generation, &recorded_machine(generation), &["-i", "-1"]);
        assert_eq!(output.status.code(), Some(code), "{generation}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, recording(generation, "table-none"), "{generation}");
    }
}
