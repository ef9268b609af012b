//! Constants of protocol and arithmetic.

pub const MAGIC: [u8; 4] = *b"CCPR";
pub const VERSION: u8 = 1;
pub const REQUEST: u8 = 1;
pub const REPLY: u8 = 2;
pub const FEEDBACK: u8 = 3;
pub const HEADER_BYTES: usize = 16;
pub const REPLY_BYTES: usize = 48;
pub const WINDOW: u64 = 1 << 20;
pub const ONE: u64 = 1 << 32;
pub const GAMMA: u64 = 429_496_730;
pub const REST: u64 = ONE - GAMMA;
pub const FLOOR: u64 = 16 << 32;
pub const RATE: u64 = 2_661_302_619_568_864_498;
pub const POWERS: [u64; 6] = [4_294_967_296, 2_977_043_436, 1_031_713_110, 237_969_895, 40_115_630, 4_299_057];
pub fn request_bytes(inputs: usize) -> usize { (HEADER_BYTES + inputs).max(REPLY_BYTES) }
pub fn step(predictors: usize) -> u64 { RATE / predictors as u64 }
