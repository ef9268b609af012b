//! The kernel module as a datapath, and its platform-free half in user space.

mod device;
pub mod user;

pub use device::{DEFAULT_DEVICE, ModuleDatapath, ModuleError};
