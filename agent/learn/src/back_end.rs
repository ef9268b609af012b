//! What computes updates, chosen at run time.

use crate::{LearnError, Learner, Native, Policy, PpoConfig};
use std::fmt;
use std::str::FromStr;

/// Threads of an operation, at most.
pub const MAX_THREADS: usize = 256;

/// What computes updates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BackEnd {
    /// Plain Rust on one thread: the fastest for networks of Aurora's size, and the same bits on every machine.
    #[default]
    Native,
    /// libtorch: for larger networks and GPUs; only in builds with the feature `torch`.
    Torch(TorchOptions),
}

/// How libtorch computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchOptions {
    /// Where.
    pub device: Device,
    /// Threads of an operation, 1 to [`MAX_THREADS`]; libtorch has one such number in a process. More than one pays for
    /// layers of several hundred neurons; with small ones threads mostly wait for each other.
    pub threads: usize,
}

/// Where libtorch computes. As text: `cpu`, `cuda:1`, `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Device {
    /// On processors.
    #[default]
    Cpu,
    /// On the CUDA device of that number.
    Cuda(usize),
    /// On the first CUDA device, or on processors where libtorch sees none.
    Auto,
}

/// No device's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name:?} is no device: `cpu`, `cuda`, `cuda:N` and `auto` are")]
pub struct DeviceError {
    /// What was given.
    pub name: String,
}

impl BackEnd {
    /// A learner that goes on from `policy`, with an optimiser that has seen nothing.
    ///
    /// # Errors
    /// Settings out of their range; libtorch in a build without it, or a device that it does not have.
    pub fn learner(self, policy: &Policy, config: PpoConfig) -> Result<Box<dyn Learner>, LearnError> {
        match self {
            BackEnd::Native => Ok(Box::new(Native::new(policy, config)?)),
            #[cfg(feature = "torch")]
            BackEnd::Torch(options) => Ok(Box::new(crate::Torch::new(policy, config, options)?)),
            #[cfg(not(feature = "torch"))]
            BackEnd::Torch(_) => Err(LearnError::BackEnd {
                name: "libtorch",
                message: "this program was built without it; `make torch` fetches it and says how to build"
                    .to_owned(),
            }),
        }
    }
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
    fn devices_by_name() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(3), Device::Auto] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for name in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            assert_eq!(name.parse::<Device>(), Err(DeviceError { name: name.to_owned() }));
        }
    }
}
