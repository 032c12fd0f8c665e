//! Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), keyed by FNV-1a-64.
//!
//! Counter-based, so element i is the same whichever thread or device makes it.

/// FNV-1a, 64 bits (Fowler, Noll, Vo; offset basis and prime of the reference).
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
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
            let p0 = u64::from(c[0]) * 0xD251_1F53;
            let p1 = u64::from(c[2]) * 0xCD9E_8D57;
            c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
            k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
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
        (self.u64(stream, index) >> 11) as f64 * 2f64.powi(-53)
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
    fn fnv_known_answer() {
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
