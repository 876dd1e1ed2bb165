//! Resolves ids of devices on command lines: indices, UUIDs of GPUs and MIG devices, PCI addresses, serials.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::process::Stdio;

use crate::program::RealProgram;

/// Finds the indices of ids. For an id that is not an index it runs the real program.
#[derive(Debug)]
pub(crate) struct DeviceIds<'a> {
    real: &'a RealProgram,
    names: OnceCell<Vec<(String, u32)>>,
}

impl<'a> DeviceIds<'a> {
    pub(crate) const fn new(real: &'a RealProgram) -> Self {
        Self { real, names: OnceCell::new() }
    }

    /// The devices of `attached` in a list of ids. Unknown ids are skipped, as by the real program.
    pub(crate) fn named(&self, ids: &str, attached: &[u32]) -> Vec<u32> {
        let named: Vec<u32> = ids.split(',').filter_map(|id| self.index(id)).collect();
        attached.iter().copied().filter(|index| named.contains(index)).collect()
    }

    /// The GPU of an id; for a MIG device, its parent.
    pub(crate) fn index(&self, id: &str) -> Option<u32> {
        if let Ok(index) = id.parse() {
            return Some(index);
        }
        let names = self.names.get_or_init(|| self.ask());
        let wanted = comparable(id);
        names.iter().find(|(name, _)| *name == wanted).map(|(_, index)| *index)
    }

    /// The numbers of a GPU's MIG devices.
    pub(crate) fn mig(&self, gpu: u32) -> Vec<u32> {
        mig(&self.answer(&["-L"]), gpu)
    }

    fn ask(&self) -> Vec<(String, u32)> {
        let columns = "--query-gpu=index,uuid,pci.bus_id,serial";
        let mut names = gpus(&self.answer(&[columns, "--format=csv,noheader"]));
        names.extend(uuids(&self.answer(&["-L"])));
        names
    }

    fn answer(&self, arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let mut command = self.real.command(&arguments);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Indices in the format of the real programs.
pub(crate) fn join(devices: &[u32]) -> String {
    let devices: Vec<String> = devices.iter().map(u32::to_string).collect();
    devices.join(",")
}

/// Rows of index, UUID, PCI address and serial.
fn gpus(rows: &str) -> Vec<(String, u32)> {
    let mut names = Vec::new();
    for row in rows.lines() {
        let mut fields = row.split(", ");
        if let Some(index) = fields.next().and_then(|index| index.parse().ok()) {
            // Values in brackets are not available.
            let known = fields.filter(|field| !field.starts_with('['));
            names.extend(known.map(|field| (comparable(field), index)));
        }
    }
    names
}

/// UUIDs in the output of `-L`, where MIG devices are indented under their GPU.
fn uuids(list: &str) -> Vec<(String, u32)> {
    let mut gpu = None;
    let mut names = Vec::new();
    for line in list.lines() {
        gpu = gpu_of(line.as_bytes()).or(gpu);
        let uuid = line.rsplit_once("(UUID: ").and_then(|(_, uuid)| uuid.strip_suffix(')'));
        names.extend(uuid.zip(gpu).map(|(uuid, gpu)| (comparable(uuid), gpu)));
    }
    names
}

/// The numbers of a GPU's MIG devices in the output of `-L`: `  MIG 3g.40gb     Device  0: (UUID: …)`.
fn mig(list: &str, wanted: u32) -> Vec<u32> {
    let mut gpu = None;
    let mut numbers = Vec::new();
    for line in list.lines() {
        gpu = gpu_of(line.as_bytes()).or(gpu);
        let device = line.trim_start().strip_prefix("MIG ");
        let number = device.and_then(|it| it.split_once(" Device ")?.1.split_once(':'));
        if gpu == Some(wanted) {
            numbers.extend(number.and_then(|(number, _)| number.trim().parse::<u32>().ok()));
        }
    }
    numbers
}

/// The index in a line such as `GPU 0: NVIDIA A100`.
pub(crate) fn gpu_of(line: &[u8]) -> Option<u32> {
    let line = line.strip_prefix(b"GPU ")?;
    let digits = line.split(|byte| *byte == b':').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The normal form of an id: `0000:0f:00.0` and `00000000:0F:00.0` are the same PCI address, and driver 450 wrote MIG
/// devices as `MIG-GPU-UUID/INSTANCE/INSTANCE`.
fn comparable(id: &str) -> String {
    let id = id.trim().to_ascii_lowercase();
    if let Some(gpu) = id.strip_prefix("mig-").filter(|gpu| gpu.starts_with("gpu-")) {
        return gpu.split('/').next().unwrap_or(gpu).to_owned();
    }
    match id.rsplit_once(':') {
        None => id,
        Some((rest, device)) => {
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("", rest));
            let domain = domain.trim_start_matches('0');
            let device = device.split('.').next().unwrap_or(device);
            format!("{domain}:{bus}:{device}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_devices_are_numbered_within_their_gpu() {
        let list = "GPU 0: NVIDIA A100 (UUID: GPU-AA)\n  MIG 3g.40gb     Device  0: (UUID: MIG-CC)\n  \
                    MIG 4g.40gb     Device  1: (UUID: MIG-DD)\nGPU 1: NVIDIA A100 (UUID: GPU-BB)\n";
        assert_eq!(mig(list, 0), [0, 1]);
        assert_eq!(mig(list, 1), [0; 0]);
    }

    #[test]
    fn every_way_to_write_an_id_is_understood() {
        let mut names = gpus("0, GPU-AA, 00000000:07:00.0, 123\n1, GPU-BB, [N/A], [N/A]\nNo devices\n");
        names.extend(uuids(
            "GPU 0: NVIDIA A100 (UUID: GPU-AA)\n  MIG 3g.40gb     Device  0: (UUID: MIG-CC)\nGPU 1: (UUID: x) (UUID: GPU-BB)\n",
        ));
        let index = |id: &str| {
            let wanted = comparable(id);
            names.iter().find(|(name, _)| *name == wanted).map(|(_, index)| *index)
        };
        for (id, expected) in [
            ("GPU-AA", Some(0)),
            ("gpu-aa", Some(0)),
            ("123", Some(0)),
            ("00000000:07:00.0", Some(0)),
            ("0000:07:00.0", Some(0)),
            ("07:00.0", Some(0)),
            ("07:00", Some(0)),
            ("MIG-CC", Some(0)),
            ("MIG-GPU-BB/1/0", Some(1)),
            ("GPU-BB", Some(1)),
            ("00000001:07:00.0", None),
            ("[n/a]", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(index(id), expected, "{id}");
        }
    }
}
