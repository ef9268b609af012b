//! The back ends that compute updates, chosen at run time.

use crate::device::TorchOptions;
use crate::error::LearnError;
use crate::learner::Learner;
use crate::native::Native;
use crate::policy::Policy;
use crate::ppo::PpoConfig;

/// The implementation that computes updates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BackEnd {
    /// Plain Rust on one thread: the fastest for networks of Aurora's size, and the same bits on every machine.
    #[default]
    Native,
    /// libtorch: for larger networks and GPUs; only in builds with the feature `torch`.
    Torch(TorchOptions),
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
