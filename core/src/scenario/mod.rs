//! Simulated hosts, described by a scenario file: devices, environments and processes whose
//! behaviour is a function of time, and the faults that drivers have.
