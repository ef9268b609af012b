//! Bounds of networks, images and slots.

/// Largest number of inputs of a network: all cells of a program's histories.
pub const MAX_INPUTS: usize = 64;
/// Largest number of neurons of a hidden layer.
pub const MAX_WIDTH: usize = 64;
/// Largest number of layers of weights, including the output's.
pub const MAX_LAYERS: usize = 4;
/// Most classes of a classifier: outputs of its network.
pub const MAX_CLASSES: usize = 16;
/// Largest size of an image, bytes.
pub const MAX_IMAGE_BYTES: usize = 1 << 15;
/// Snapshots that a slot holds at once: the active one, a canary, the last good one, and a buffer to write to.
pub const BUFFERS: usize = 4;
