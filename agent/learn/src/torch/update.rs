//! One PPO update, as [`PpoConfig`] means it, on a device.

use super::adam::Adam;
use super::network::Networks;
use crate::batch::Batch;
use crate::learner::UpdateStats;
use crate::ppo::{KL_TOLERANCE, PpoConfig};
use crate::rng::Rng;
use tch::{Device, Kind, TchError, Tensor};

/// Half of ln 2 pi.
const HALF_LN_TAU: f64 = 0.918_938_533_204_672_7;
/// Half of ln 2 pi e.
const UNIT_ENTROPY: f32 = 1.418_938_5;

/// The columns of a batch that an update reads.
struct Rows {
    observations: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
}

/// The networks to train and their optimiser.
pub(super) struct Trained<'a> {
    pub networks: &'a Networks,
    pub parameters: &'a mut Tensor,
    pub adam: &'a mut Adam,
    pub config: &'a PpoConfig,
    pub learning_rate: f32,
}

/// A minibatch's losses and its statistics.
struct Losses {
    total: Tensor,
    /// [`Sums`], without the gradient's norm.
    sums: [Tensor; 4],
}

/// Sums over rows that were gone through.
#[derive(Default)]
struct Sums {
    policy: f64,
    value: f64,
    clipped: f64,
    kl: f64,
    grad_norm: f64,
}

impl Trained<'_> {
    /// Goes through the batch, which has been checked.
    pub fn update(&mut self, batch: &Batch, rng: &mut Rng) -> Result<UpdateStats, TchError> {
        let device = self.parameters.device();
        let rows = Rows::new(batch, self.config.normalise_advantages, device)?;
        let mut order: Vec<i64> = (0..batch.len() as i64).collect();
        let minibatches = batch.len().div_ceil(self.config.minibatch);
        let (mut all, mut approx_kl, mut epochs) = (Sums::default(), 0.0, 0);
        for _ in 0..self.config.epochs {
            rng.shuffle(&mut order);
            let order = Tensor::f_from_slice(&order)?.f_to_device(device)?;
            let sums = self.epoch(&rows.in_order(&order)?, batch.len())?;
            approx_kl = sums.kl / batch.len() as f64;
            epochs += 1;
            all.add(&sums);
            if self.config.target_kl.is_some_and(|target| approx_kl > f64::from(KL_TOLERANCE * target)) {
                break;
            }
        }
        let gone_through = (batch.len() * epochs) as f64;
        Ok(UpdateStats {
            policy_loss: (all.policy / gone_through) as f32,
            value_loss: (all.value / gone_through) as f32,
            approx_kl: approx_kl as f32,
            clip_fraction: (all.clipped / gone_through) as f32,
            grad_norm: (all.grad_norm / (minibatches * epochs) as f64) as f32,
            explained_variance: batch.explained_variance(),
            entropy: self.parameters.f_double_value(&[-1])? as f32 + UNIT_ENTROPY,
            epochs,
        })
    }

    /// Goes through rows once, minibatch by minibatch.
    fn epoch(&mut self, rows: &Rows, len: usize) -> Result<Sums, TchError> {
        // They stay on the device until the end: reading one waits for it.
        let mut sums = Tensor::f_zeros([5], (Kind::Double, rows.actions.device()))?;
        for start in (0..len).step_by(self.config.minibatch) {
            let minibatch = rows.cut(start, self.config.minibatch.min(len - start))?;
            let losses = self.losses(&minibatch)?;
            let [mut gradient] = gradients(&losses.total, self.parameters)?;
            let _no_grad = tch::no_grad_guard();
            self.networks.mask(&mut gradient)?;
            let norm = gradient.f_norm()?;
            if let Some(max) = self.config.max_grad_norm {
                let factor = norm.f_reciprocal()?.f_mul_scalar_(f64::from(max))?.f_clamp_max_(1.0)?;
                let _ = gradient.f_mul_(&factor)?;
            }
            self.adam.step(self.parameters, &gradient, self.learning_rate, self.config.eps)?;
            let (lo, hi) = self.config.log_std_range;
            let _ = self.parameters.f_narrow(0, -1, 1)?.f_clamp_(f64::from(lo), f64::from(hi))?;
            let [policy, value, clipped, kl] = &losses.sums;
            let _ = sums.f_add_(&Tensor::f_stack(&[policy, value, clipped, kl, &norm], 0)?)?;
        }
        let sums: Vec<f64> = Vec::try_from(&sums)?;
        match sums.as_slice() {
            [policy, value, clipped, kl, grad_norm] => {
                Ok(Sums { policy: *policy, value: *value, clipped: *clipped, kl: *kl, grad_norm: *grad_norm })
            }
            other => Err(TchError::Shape(format!("{} sums of five", other.len()))),
        }
    }

    fn losses(&self, rows: &Rows) -> Result<Losses, TchError> {
        let clip = f64::from(self.config.clip);
        let outputs = self.networks.forward(self.parameters, &rows.observations)?;
        let z = (rows.actions.f_sub(&outputs.means)?).f_mul(&outputs.log_std.f_neg()?.f_exp()?)?;
        let log_probs =
            z.f_square()?.f_mul_scalar(-0.5)?.f_sub(&outputs.log_std)?.f_sub_scalar(HALF_LN_TAU)?;
        let ln_ratio = log_probs.f_sub(&rows.log_probs)?;
        let ratio = ln_ratio.f_exp()?;
        let clamped = ratio.f_clamp(1.0 - clip, 1.0 + clip)?;
        let objective = ratio.f_mul(&rows.advantages)?.f_minimum(&clamped.f_mul(&rows.advantages)?)?;
        let policy = objective.f_sum(Kind::Float)?.f_neg()?;
        let value = outputs.values.f_sub(&rows.returns)?.f_square()?.f_sum(Kind::Float)?;
        let per_row = 1.0 / rows.actions.numel() as f64;
        // The entropy but for a constant, which has no gradient.
        let total = policy
            .f_add(&value.f_mul_scalar(f64::from(self.config.value_coef))?)?
            .f_mul_scalar(per_row)?
            .f_sub(&outputs.log_std.f_mul_scalar(f64::from(self.config.entropy_coef))?)?;
        let _no_grad = tch::no_grad_guard();
        let kl = ratio.f_sub_scalar(1.0)?.f_sub(&ln_ratio)?.f_sum(Kind::Float)?;
        let clipped = ratio.f_ne_tensor(&clamped)?.f_sum(Kind::Float)?;
        Ok(Losses { total, sums: [policy.f_detach()?, value.f_detach()?, clipped, kl] })
    }
}

impl Rows {
    fn new(batch: &Batch, normalise: bool, device: Device) -> Result<Rows, TchError> {
        let column = |numbers: &[f32]| Tensor::f_from_slice(numbers)?.f_to_device(device);
        let mut advantages = batch.advantages.clone();
        if normalise {
            crate::batch::normalise(&mut advantages);
        }
        Ok(Rows {
            observations: column(&batch.observations)?.f_view([batch.len() as i64, -1])?,
            actions: column(&batch.actions)?,
            log_probs: column(&batch.log_probs)?,
            advantages: column(&advantages)?,
            returns: column(&batch.returns)?,
        })
    }

    /// All of them, the one that `order` names first, first.
    fn in_order(&self, order: &Tensor) -> Result<Rows, TchError> {
        self.each(|column| column.f_index_select(0, order))
    }

    /// Returns `len` rows from `start` on.
    fn cut(&self, start: usize, len: usize) -> Result<Rows, TchError> {
        self.each(|column| column.f_narrow(0, start as i64, len as i64))
    }

    fn each(&self, f: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Rows, TchError> {
        Ok(Rows {
            observations: f(&self.observations)?,
            actions: f(&self.actions)?,
            log_probs: f(&self.log_probs)?,
            advantages: f(&self.advantages)?,
            returns: f(&self.returns)?,
        })
    }
}

impl Sums {
    fn add(&mut self, other: &Sums) {
        self.policy += other.policy;
        self.value += other.value;
        self.clipped += other.clipped;
        self.kl += other.kl;
        self.grad_norm += other.grad_norm;
    }
}

/// Returns the gradient of a loss by all parameters.
fn gradients(loss: &Tensor, parameters: &Tensor) -> Result<[Tensor; 1], TchError> {
    let found = Tensor::f_run_backward(&[loss], &[parameters], false, false)?;
    <[Tensor; 1]>::try_from(found)
        .map_err(|found| TchError::Shape(format!("{} gradients of one tensor", found.len())))
}
