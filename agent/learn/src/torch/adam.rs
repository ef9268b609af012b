//! Adam over one flat tensor. Own, because libtorch's optimisers cannot be read out through tch, and a checkpoint must.

use crate::learner::Moments;
use crate::ppo::{BETA_1, BETA_2};
use tch::{Device, TchError, Tensor};

/// Adam (Kingma and Ba, 2015), `eps` outside the root.
#[derive(Debug)]
pub(super) struct Adam {
    first: Tensor,
    second: Tensor,
    steps: u64,
}

impl Adam {
    /// One that goes on from these moments.
    pub fn new(moments: &Moments, device: Device) -> Result<Adam, TchError> {
        let on_device = |numbers: &[f32]| Tensor::f_from_slice(numbers)?.f_to_device(device);
        Ok(Adam {
            first: on_device(&moments.first)?,
            second: on_device(&moments.second)?,
            steps: moments.steps,
        })
    }

    /// Returns the moments to go on from.
    pub fn moments(&self) -> Result<Moments, TchError> {
        Ok(Moments {
            first: Vec::try_from(&self.first)?,
            second: Vec::try_from(&self.second)?,
            steps: self.steps,
        })
    }

    /// Moves `parameters` against `gradient`. Call it where no gradients are taken.
    pub fn step(
        &mut self,
        parameters: &mut Tensor,
        gradient: &Tensor,
        learning_rate: f32,
        eps: f32,
    ) -> Result<(), TchError> {
        self.steps += 1;
        let unbiased = |beta: f32| 1.0 - f64::from(beta).powf(self.steps as f64);
        let _ = self.first.f_lerp_(gradient, 1.0 - f64::from(BETA_1))?;
        let _ = self.second.f_lerp_(&gradient.f_square()?, 1.0 - f64::from(BETA_2))?;
        let root = self
            .second
            .f_sqrt()?
            .f_mul_scalar_(1.0 / unbiased(BETA_2).sqrt())?
            .f_add_scalar_(f64::from(eps))?;
        let step = self.first.f_div(&root)?.f_mul_scalar_(-f64::from(learning_rate) / unbiased(BETA_1))?;
        let _ = parameters.f_add_(&step)?;
        Ok(())
    }
}
