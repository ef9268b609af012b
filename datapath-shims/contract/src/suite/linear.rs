//! Snapshots made by hand: what they decide can be worked out on paper.

use super::images;
use ccplane_infer::image::{self, map};
use ccplane_infer::{Bits, Shape, ShapeError};

/// Two inputs, each in +-127, times `weights`; the sum is the action in 16ths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub(super) uid: u32,
    pub(super) weights: [i64; 2],
    pub(super) bound_q16: u32,
    /// One of [`image::map`]. An action of 1 changes the knob by a quarter.
    pub(super) map: u32,
    /// Smallest value of the knob, bytes or bytes per second.
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) trip_limit: u32,
    pub(super) flags: u32,
}

impl Linear {
    /// Actions up to 8 that change nothing.
    pub(super) fn new(uid: u32, weights: [i64; 2]) -> Linear {
        Linear {
            uid,
            weights,
            bound_q16: 8 << 16,
            map: map::NONE,
            min: 1000,
            max: 1_000_000,
            trip_limit: 0,
            flags: 0,
        }
    }

    pub(super) fn shape() -> Result<Shape, ShapeError> {
        Shape::new(Bits::W8, &[2, 1])
    }

    pub(super) fn image(&self) -> Result<Vec<u64>, ShapeError> {
        let shape = Linear::shape()?;
        let mut image = images::idle(&shape, self.uid);
        image::set_u32(&mut image, image::CLIP_LIMIT, 1);
        image::set_u32(&mut image, image::ACTION_BOUND_Q16, self.bound_q16);
        image::set_u32(&mut image, image::MAP, self.map);
        image::set_u64(&mut image, image::OUT_MULT, 1 << 20);
        image::set_u32(&mut image, image::OUT_SHIFT, 8);
        image::set_u32(&mut image, image::TRIP_LIMIT, self.trip_limit);
        image::set_u64(&mut image, image::STEP_Q20, 1 << 18);
        image::set_u64(&mut image, image::KNOB_MIN, self.min);
        image::set_u64(&mut image, image::KNOB_MAX, self.max);
        image::set_u32(&mut image, image::FLAGS, self.flags);
        for (n, weight) in self.weights.into_iter().enumerate() {
            image::set_u64(&mut image, shape.weights_at(0) + 8 * n, weight as u64);
        }
        Ok(image)
    }
}
