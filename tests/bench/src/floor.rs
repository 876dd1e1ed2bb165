//! The floor under a collection: the same NVML calls and the same reads of files, with nothing made of
//! the answers.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlClockType_enum_NVML_CLOCK_GRAPHICS, nvmlClockType_enum_NVML_CLOCK_MEM,
    nvmlClockType_enum_NVML_CLOCK_SM, nvmlClockType_enum_NVML_CLOCK_VIDEO, nvmlDevice_t,
    nvmlEccCounterType_enum_NVML_VOLATILE_ECC, nvmlMemory_v2_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_t, nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU, nvmlUtilization_t,
};
use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::io::pread;

const CAPACITY: usize = 1024;

pub(crate) struct Driver {
    library: NvmlLib,
    devices: Vec<nvmlDevice_t>,
    last_seen: Vec<u64>,
}

impl Driver {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // SAFETY: the library runs its initializers, which those of NVML allow in any program.
        let library = unsafe { NvmlLib::new(path) }?;
        let mut count = 0;
        // SAFETY: the library stays loaded, and NVML writes one integer.
        unsafe {
            succeed(library.nvmlInit_v2())?;
            succeed(library.nvmlDeviceGetCount_v2(&raw mut count))?;
        }
        let mut devices = Vec::new();
        for index in 0..count {
            let mut device = std::ptr::null_mut();
            // SAFETY: NVML is initialized and writes one handle.
            succeed(unsafe { library.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device) })?;
            devices.push(device);
        }
        Ok(Self { library, last_seen: vec![0; devices.len()], devices })
    }

    /// Asks every device all that a collection asks, once. How many processes were listed.
    pub(crate) fn sweep(&mut self) -> Result<usize> {
        let mut processes = 0;
        let mut count = 0;
        // SAFETY: NVML is initialized and writes one integer.
        succeed(unsafe { self.library.nvmlDeviceGetCount_v2(&raw mut count) })?;
        for at in 0..self.devices.len() {
            self.measure(self.devices[at])?;
            processes += self.list(at)?;
        }
        Ok(processes)
    }

    fn measure(&self, device: nvmlDevice_t) -> Result<()> {
        let nvml = &self.library;
        let (mut a, mut b, mut long) = (0, 0, 0);
        let mut uuid = [0; 96];
        let mut utilization = nvmlUtilization_t { gpu: 0, memory: 0 };
        let mut memory = nvmlMemory_v2_t {
            version: u32::try_from(size_of::<nvmlMemory_v2_t>())? | 2 << 24,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        // SAFETY: the handle is of this library, which is initialized; every pointer is to a value of the
        // type that the call writes, and the buffer is as long as is said.
        unsafe {
            succeed(nvml.nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), 96))?;
            // Not every device can be split, nor has fans.
            let _ = nvml.nvmlDeviceGetMigMode(device, &raw mut a, &raw mut b);
            let _ = nvml.nvmlDeviceGetFanSpeed_v2(device, 0, &raw mut a);
            succeed(nvml.nvmlDeviceGetUtilizationRates(device, &raw mut utilization))?;
            succeed(nvml.nvmlDeviceGetEncoderUtilization(device, &raw mut a, &raw mut b))?;
            succeed(nvml.nvmlDeviceGetDecoderUtilization(device, &raw mut a, &raw mut b))?;
            let sensor = nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
            succeed(nvml.nvmlDeviceGetTemperature(device, sensor, &raw mut a))?;
            succeed(nvml.nvmlDeviceGetPowerUsage(device, &raw mut a))?;
            succeed(nvml.nvmlDeviceGetEnforcedPowerLimit(device, &raw mut a))?;
            succeed(nvml.nvmlDeviceGetTotalEnergyConsumption(device, &raw mut long))?;
            succeed(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, &raw mut long))?;
            succeed(nvml.nvmlDeviceGetPcieReplayCounter(device, &raw mut a))?;
            succeed(nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory))?;
            for clock in [
                nvmlClockType_enum_NVML_CLOCK_GRAPHICS,
                nvmlClockType_enum_NVML_CLOCK_SM,
                nvmlClockType_enum_NVML_CLOCK_MEM,
                nvmlClockType_enum_NVML_CLOCK_VIDEO,
            ] {
                succeed(nvml.nvmlDeviceGetClockInfo(device, clock, &raw mut a))?;
            }
            for kind in [
                nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
                nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            ] {
                let counter = nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
                succeed(nvml.nvmlDeviceGetTotalEccErrors(device, kind, counter, &raw mut long))?;
            }
        }
        Ok(())
    }

    fn list(&mut self, at: usize) -> Result<usize> {
        let nvml = &self.library;
        let device = self.devices[at];
        let mut entries = Vec::<nvmlProcessInfo_t>::with_capacity(CAPACITY);
        let mut samples = Vec::<nvmlProcessUtilizationSample_t>::with_capacity(CAPACITY);
        let capacity = u32::try_from(CAPACITY)?;
        let (mut compute, mut other, mut sampled) = (capacity, capacity, capacity);
        // SAFETY: as in `measure`; NVML writes at most as many entries as there is room for.
        unsafe {
            let room = entries.as_mut_ptr();
            succeed(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut compute, room))?;
            succeed(nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(device, &raw mut other, room))?;
            other = capacity;
            let _ = nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &raw mut other, room);
            let room = samples.as_mut_ptr();
            let since = self.last_seen[at];
            if nvml.nvmlDeviceGetProcessUtilization(device, room, &raw mut sampled, since) == 0 {
                samples.set_len(sampled as usize);
            }
        }
        let newest = samples.iter().map(|sample| sample.timeStamp).max();
        self.last_seen[at] = newest.unwrap_or(self.last_seen[at]);
        Ok(compute as usize)
    }
}

fn succeed(code: nvmlReturn_t) -> Result<()> {
    ensure!(code == 0, "an NVML call answered {code}");
    Ok(())
}

/// In how many cycles a collection reads the `stat` of a known process once.
const CYCLES_BETWEEN_STATS: u32 = 8;

pub(crate) struct Files {
    processes: Vec<Process>,
    state: PathBuf,
    /// The file whose length is the number of refused requests.
    refused: PathBuf,
}

struct Process {
    pid: u32,
    folder: OwnedFd,
    environ: OwnedFd,
}

impl Process {
    fn open(pid: u32) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let folder = open(format!("/proc/{pid}"), flags, Mode::empty())?;
        let environ = openat(&folder, c"environ", OFlags::RDONLY, Mode::empty())?;
        Ok(Self { pid, folder, environ })
    }
}

impl Files {
    /// Files of the load: those of its processes, which the environments' members are among, and the state.
    pub(crate) fn of(processes: Vec<u32>, state_directory: &Path) -> Result<Self> {
        let processes = processes.into_iter().map(Process::open);
        Ok(Self {
            processes: processes.collect::<Result<_>>()?,
            state: state_directory.join("state.json"),
            refused: state_directory.join("genv-refused"),
        })
    }

    /// Reads what a collection reads in a cycle. How many bytes there were.
    pub(crate) fn read(&mut self, cycle: u32, buffer: &mut Vec<u8>) -> Result<usize> {
        let mut bytes = 0;
        buffer.clear();
        bytes += File::open(&self.state)?.read_to_end(buffer)?;
        // The length of the file is all that is read of it. Without refused requests there is none.
        let _ = fs::metadata(&self.refused);
        // Whether the mount hides processes.
        let _ = fs::metadata("/proc/1/stat");
        buffer.resize(1 << 16, 0);
        for process in &mut self.processes {
            if process.pid % CYCLES_BETWEEN_STATS == cycle % CYCLES_BETWEEN_STATS {
                *process = Process::open(process.pid)?;
                let stat = openat(&process.folder, c"stat", OFlags::RDONLY, Mode::empty())?;
                bytes += pread(&stat, &mut *buffer, 0)?;
            }
            let _owner_and_inode = fstat(&process.folder)?;
            bytes += pread(&process.environ, &mut *buffer, 0)?;
        }
        Ok(bytes)
    }
}
