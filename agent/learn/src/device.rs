//! The devices of libtorch, by name.

use std::fmt;
use std::str::FromStr;

/// Threads of an operation, at most.
pub const MAX_THREADS: usize = 256;

/// The device that libtorch computes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchOptions {
    pub device: Device,
    /// Threads of an operation, 1 to [`MAX_THREADS`]; libtorch has one such number in a process. More than one pays for
    /// layers of several hundred neurons; with small ones threads mostly wait for each other.
    pub threads: usize,
}

/// The device that libtorch computes on. As text: `cpu`, `cuda:1`, `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Device {
    #[default]
    Cpu,
    /// The CUDA device of that number.
    Cuda(usize),
    /// The first CUDA device, or processors where libtorch sees none.
    Auto,
}

/// The error for a name that is no device's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name:?} is no device: `cpu`, `cuda`, `cuda:N` and `auto` are")]
pub struct DeviceError {
    pub name: String,
}

impl Default for TorchOptions {
    /// One thread of a processor.
    fn default() -> TorchOptions {
        TorchOptions { device: Device::Cpu, threads: 1 }
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Device, DeviceError> {
        let device = match name {
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            "auto" => Some(Device::Auto),
            _ => name.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(Device::Cuda),
        };
        device.ok_or_else(|| DeviceError { name: name.to_owned() })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(n) => write!(f, "cuda:{n}"),
            Device::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_from_their_names() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(3), Device::Auto] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            assert_eq!(name.parse::<Device>(), Err(DeviceError { name: name.to_owned() }));
        }
    }
}
