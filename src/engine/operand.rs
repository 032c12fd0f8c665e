//! An operand in a device's memory, with what lies around it.

use crate::op::Role;

use super::pool::Rented;

pub(super) fn round4(bytes: u64) -> u64 {
    bytes.div_ceil(4) * 4
}

pub(super) fn round16(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(16) * 16
}

pub(super) struct OperandBuffer {
    pub(super) buffer: Rented,
    /// Where the data begin.
    pub(super) head: u64,
    pub(super) role: Role,
    pub(super) dtype: crate::base::DType,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
}

impl OperandBuffer {
    /// What fills the guards. Around inputs NaN, or -1: a result that was made of it shows. Around what is written a number,
    /// for of NaN a kernel makes the same NaN: a copy of an input's guard to an output's would not show.
    pub(super) fn guard_byte(&self) -> u8 {
        if self.role == Role::In { 0xFF } else { 0xC3 }
    }

    /// The parts of the buffer in front of and behind the data: first byte and length. WGSL stores 16-bit elements in
    /// pairs, and copies move whole words, so the last word belongs to the data.
    pub(super) fn guards(&self) -> [(u64, u64); 2] {
        let end = self.head + round4(self.bytes);
        [(0, self.head), (end, self.buffer.bytes() - end)]
    }
}
