//! Keys of entries in one word, and what is found by them.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hasher};

use crate::base::DType;

use super::choose::SmallSends;
use super::index::mix;
use super::model::Plain;

/// A key in one word: group, dtype, CPU variant, threads, then residency and device by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Packed(u64);

// Four bits of a key.
const _: () = assert!(DType::ALL.len() <= 16);

impl Packed {
    /// No key.
    pub(super) const NONE: Packed = Packed(u64::MAX);
    const GROUPS: u32 = 1 << 20;
    const VARIANTS: usize = 1 << 8;
    const THREADS: u32 = 1 << 16;
    const RESIDENCIES: usize = 1 << 5;
    const DEVICES: usize = 1 << 11;

    /// What of a key does not depend on where the operands are; [`Packed::NONE`] if a number is too large, or a word is in no
    /// entry.
    #[inline(always)]
    pub(super) fn call(group: u32, dtype: DType, variant: Option<usize>, threads: u32) -> Packed {
        match variant {
            // All groups but the last one, so that no key is NONE.
            Some(v) if group < Self::GROUPS - 1 && v < Self::VARIANTS && threads < Self::THREADS => {
                let low = u64::from(group) | (dtype as u64) << 20 | (v as u64) << 24;
                Packed(low | u64::from(threads) << 32)
            }
            _ => Packed::NONE,
        }
    }

    /// The key of such a call with its operands there; NONE stays NONE.
    #[inline(always)]
    pub(super) fn at(self, device: usize, residency: usize) -> Packed {
        if device < Self::DEVICES && residency < Self::RESIDENCIES {
            Packed(self.0 | (residency as u64) << 48 | (device as u64) << 53)
        } else {
            Packed::NONE
        }
    }
}

/// Hashes packed keys with a seed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seeded(pub(super) u64);

impl BuildHasher for Seeded {
    type Hasher = Hash64;
    #[inline(always)]
    fn build_hasher(&self) -> Hash64 {
        Hash64(self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Hash64(u64);

impl Hasher for Hash64 {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0, word);
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a choice needs of an entry, in one line of the cache; found by its key.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) key: Packed,
    /// Number of the entry.
    pub(super) entry: u32,
    pub(super) sends: SmallSends,
    pub(super) plain: Plain,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Slot {}

impl std::hash::Hash for Slot {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl Borrow<Packed> for Slot {
    fn borrow(&self) -> &Packed {
        &self.key
    }
}
