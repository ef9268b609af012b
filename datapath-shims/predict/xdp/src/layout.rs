//! The memory that the program and user space share: offsets in bytes, words little-endian and naturally aligned.
//!
//! Three arrays of one value each, all of which user space maps: the services, one block a processor, and the networks. What may
//! change while packets arrive says how.

use ccplane_bandit::integer::MAX_ARMS;
use ccplane_infer::Shape;
use ccplane_nn_codegen::bpf::{ByteTable, LIST_BYTES, SCRATCH_BYTES, TABLES_BYTES, slack_bytes};

/// Buffers of a predictor: one is in use, the other is written to.
pub const BUFFERS: usize = 2;
/// Versions of the thresholds that are kept: a reader that is overtaken by one less than this many updates begins anew.
pub const VERSIONS: usize = 8;

/// Offsets in the memory of the services; what all of them share comes first.
pub mod services {
    use super::{MAX_ARMS, VERSIONS};

    /// u64 each: SipHash's state under the tokens' key.
    pub const KEY: i16 = 0;
    /// u32: the epoch, raised after [`IN_USE`] has changed.
    pub const EPOCH: i16 = 32;
    /// u64: bit n is the buffer that predictor n uses.
    pub const IN_USE: i16 = 40;
    /// u64: the epoch whose feedback is accepted, or [`NONE`] while predictors are replaced. Read again under a service's lock.
    pub const ACCEPTED: i16 = 56;
    /// The value that stands for no epoch.
    pub const NONE: u64 = u64::MAX;
    /// u32: the random number of programs that draw none.
    pub const RANDOM: i16 = 48;
    /// The offset of the first service.
    pub const FIRST: i16 = 64;

    /// u64: the version of the thresholds, raised after they are written.
    pub const VERSION: i16 = 0;
    /// u64 each: the predictors' deficits; only changed under the service's lock.
    pub const DEFICITS: i16 = 64;
    /// u64 each, [`MAX_ARMS`] a version: the cumulative thresholds; a version is written while the one before is in use.
    pub const THRESHOLDS: i16 = DEFICITS + 8 * MAX_ARMS as i16;
    /// Bits of a version's offset.
    pub const VERSION_SHIFT: i32 = 7;
    const _: () = assert!(8 * MAX_ARMS == 1 << VERSION_SHIFT);
    /// Bytes of a service.
    pub const BYTES: i16 = THRESHOLDS + (VERSIONS as i16) * (1 << VERSION_SHIFT);

    /// Offset of a service.
    pub const fn at(service: usize) -> usize {
        FIRST as usize + service * BYTES as usize
    }
}

/// Offsets in a processor's block, which only the program on that processor writes to; user space sets [`NEXT`] before there is one.
pub mod block {
    use super::{LIST_BYTES, MAX_ARMS, SCRATCH_BYTES};

    /// u64 each: counters, in the order of [`crate::counters`].
    pub const COUNTERS: i16 = 0;
    /// u64: the number of the next token.
    pub const NEXT: i16 = 256;
    /// u64 each: the thresholds of this request.
    pub const THRESHOLDS: i16 = 320;
    /// u8 each: the class that each predictor gave.
    pub const CLASSES: i16 = THRESHOLDS + 8 * MAX_ARMS as i16;
    /// u64: the payload's offset in the packet.
    pub const OFFSET: i16 = CLASSES + MAX_ARMS as i16;
    /// u64: the drawn predictor.
    pub const ARM: i16 = OFFSET + 8;
    /// The list of the inputs' activations.
    pub const INPUTS: i16 = 512;
    /// Scratch space of the inference.
    pub const SCRATCH: i16 = INPUTS + LIST_BYTES as i16;
    /// Bytes of a block.
    pub const BYTES: usize = (SCRATCH as usize + SCRATCH_BYTES).next_multiple_of(4096);
    const _: () = assert!(ARM + 8 <= INPUTS);
}

/// Places in the memory of the networks, which follow from their shape.
#[derive(Clone, Copy, Debug)]
pub struct Networks {
    /// Offset of the activation functions.
    pub tables: usize,
    /// Offset of the activations of input bytes.
    pub inputs: usize,
    /// Offset of the first image.
    pub images: usize,
    /// Bytes from one buffer to the next.
    pub stride: usize,
    /// Size of the memory, bytes.
    pub bytes: usize,
}

impl Networks {
    /// The places of `predictors` networks.
    pub fn new(shape: &Shape, predictors: usize) -> Networks {
        let inputs = TABLES_BYTES.next_multiple_of(64);
        let images = inputs + ByteTable::bytes(shape).next_multiple_of(64);
        let stride = shape.image_bytes().next_multiple_of(64);
        Networks {
            tables: 0,
            inputs,
            images,
            stride,
            bytes: images + predictors * BUFFERS * stride + slack_bytes(shape),
        }
    }

    /// Offset of a predictor's buffer.
    pub fn image(&self, predictor: usize, buffer: usize) -> usize {
        self.images + (predictor * BUFFERS + buffer) * self.stride
    }
}
