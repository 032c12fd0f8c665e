//! Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), keyed by FNV-1a-64.
//!
//! Counter-based, so element i is the same whichever thread or device makes it.

/// FNV-1a, 64 bits (Fowler, Noll, Vo; offset basis and prime of the reference).
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Counters that are worked on together.
const LANES: usize = 16;

/// The upper 53 of 64 bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * 2f64.powi(-53)
}

/// Philox4x32-10 with a 64-bit key.
#[derive(Clone, Copy, Debug)]
pub struct Philox {
    key: [u32; 2],
}

impl Philox {
    /// A generator for this key.
    pub fn new(key: u64) -> Self {
        Philox { key: [key as u32, (key >> 32) as u32] }
    }

    /// Four random words for the counter (`stream`, `index`).
    pub fn block(&self, stream: u64, index: u64) -> [u32; 4] {
        let mut c = [index as u32, (index >> 32) as u32, stream as u32, (stream >> 32) as u32];
        let mut k = self.key;
        for _ in 0..10 {
            let p0 = u64::from(c[0]) * MULTIPLIERS[0];
            let p1 = u64::from(c[2]) * MULTIPLIERS[1];
            c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        c
    }

    /// 64 random bits for the counter (`stream`, `index`).
    pub fn u64(&self, stream: u64, index: u64) -> u64 {
        let b = self.block(stream, index);
        u64::from(b[0]) | u64::from(b[1]) << 32
    }

    /// Uniform in [0, 1) with 53 random bits.
    pub fn unit(&self, stream: u64, index: u64) -> f64 {
        unit(self.u64(stream, index))
    }

    /// [`Philox::unit`] for as many indices from `first` on as `out` is long. Written so that a compiler makes vectors of it.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "four arrays go in step, and the compiler makes vectors of them")]
    pub fn units(&self, stream: u64, first: u64, out: &mut [f64]) {
        let (low, high) = (stream as u32, (stream >> 32) as u32);
        for (at, some) in (first..).step_by(LANES).zip(out.chunks_mut(LANES)) {
            let mut c: [[u32; LANES]; 4] = [[0; LANES], [0; LANES], [low; LANES], [high; LANES]];
            for lane in 0..LANES {
                let index = at.wrapping_add(lane as u64);
                (c[0][lane], c[1][lane]) = (index as u32, (index >> 32) as u32);
            }
            let mut k = self.key;
            for _ in 0..10 {
                for lane in 0..LANES {
                    let p0 = u64::from(c[0][lane]) * MULTIPLIERS[0];
                    let p1 = u64::from(c[2][lane]) * MULTIPLIERS[1];
                    (c[0][lane], c[1][lane]) = ((p1 >> 32) as u32 ^ c[1][lane] ^ k[0], p1 as u32);
                    (c[2][lane], c[3][lane]) = ((p0 >> 32) as u32 ^ c[3][lane] ^ k[1], p0 as u32);
                }
                k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
            }
            let mut units = [0.0; LANES];
            for lane in 0..LANES {
                units[lane] = unit(u64::from(c[0][lane]) | u64::from(c[1][lane]) << 32);
            }
            some.copy_from_slice(&units[..some.len()]);
        }
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&self, stream: u64, index: u64) -> f64 {
        let b = self.block(stream, index);
        let u = (f64::from(b[0]) + 1.0) / 4_294_967_297.0;
        let v = f64::from(b[1]) / 4_294_967_296.0;
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123's kat_vectors file for philox4x32 with 10 rounds.
    #[test]
    fn philox_known_answers() {
        let zero = Philox::new(0).block(0, 0);
        assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox::new(u64::MAX).block(u64::MAX, u64::MAX);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn many_at_once_are_the_same() {
        let rng = Philox::new(0xdead_beef_0123_4567);
        for (first, n) in [(0, 0), (0, 1), (7, 15), (u64::from(u32::MAX) - 20, 53)] {
            let mut units = vec![-1.0; n];
            rng.units(1 << 40 | 3, first, &mut units);
            for (i, unit) in (first..).zip(&units) {
                assert_eq!(*unit, rng.unit(1 << 40 | 3, i), "{i}");
            }
        }
    }

    #[test]
    fn fnv_known_answer() {
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
