//! SHA-256 (FIPS 180-4), for what a 64-bit hash is too short: kept machine code that will be run.
//!
//! Written out because nothing in the dependency tree has it, and each crate that does brings several more; the standard's own
//! vectors are below. It guards against damage and mistaken identity, and holds no secret, so time leaks do not matter.

/// First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

/// Of the square roots of the first 8 primes (5.3.3).
const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// The digest of some bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut state = START;
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        mix(&mut state, block);
    }
    // A one bit, zeros, and the length in bits at the end of the last block (5.1.1).
    let mut last = [0u8; 128];
    let blocks = if rest.len() < 56 { 1 } else { 2 };
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    last[64 * blocks - 8..64 * blocks].copy_from_slice(&(8 * bytes.len() as u64).to_be_bytes());
    for block in last.as_chunks::<64>().0.iter().take(blocks) {
        mix(&mut state, block);
    }
    let mut out = [0u8; 32];
    for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *to = word.to_be_bytes();
    }
    out
}

/// The digest as 64 hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    sha256(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// One block (6.2.2).
fn mix(state: &mut [u32; 8], block: &[u8; 64]) {
    let mut w = [0u32; 64];
    for (to, from) in w.iter_mut().zip(block.as_chunks::<4>().0) {
        *to = u32::from_be_bytes(*from);
    }
    for t in 16..64 {
        let (a, b) = (w[t - 15], w[t - 2]);
        let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        w[t] = w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (k, w) in K.iter().zip(w) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 = h.wrapping_add(s1).wrapping_add((e & f) ^ (!e & g)).wrapping_add(*k).wrapping_add(w);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
    }
    for (to, from) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *to = to.wrapping_add(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST's examples (FIPS 180-4, Secure Hash Standard: one block, two blocks, a million times `a`), and the empty message.
    #[test]
    fn the_standards_vectors() {
        let million = "a".repeat(1_000_000);
        for (text, digest) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ] {
            assert_eq!(sha256_hex(text.as_bytes()), digest, "{} bytes", text.len());
        }
    }

    /// The lengths around which the padding changes; equal to coreutils' `sha256sum` of as many zero bytes.
    #[test]
    fn lengths_around_a_block() {
        for (zeros, digest) in [
            (55, "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7"),
            (56, "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb"),
            (63, "c7723fa1e0127975e49e62e753db53924c1bd84b8ac1ac08df78d09270f3d971"),
            (64, "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b"),
            (65, "98ce42deef51d40269d542f5314bef2c7468d401ad5d85168bfab4c0108f75f7"),
            (119, "f616b0d54e78571a9611f343c9f8e022e859e920381ab0e4d3da01e193a7bd7e"),
            (120, "6edd9f6f9cc92cded36e6c4a580933f9c9f1b90562b46903b806f21902a1a54f"),
            (128, "38723a2e5e8a17aa7950dc008209944e898f69a7bd10a23c839d341e935fd5ca"),
        ] {
            assert_eq!(sha256_hex(&vec![0u8; zeros]), digest, "{zeros} zeros");
        }
    }
}
