//! PCI addresses, as NVML writes them.

/// Where a device is; its function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl PciAddress {
    /// Reads `DOMAIN:BUS:DEVICE.FUNCTION`, hexadecimal; NVML's callers may leave the domain or the function out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |digits| u32::from_str_radix(digits, 16).ok();
        let address = text.split_once('.').map_or(text, |(address, _function)| address);
        let mut parts = address.rsplit(':');
        let device = number(parts.next()?)?;
        let bus = number(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), number)?;
        parts.next().is_none().then_some(Self { domain, bus, device })
    }
}
