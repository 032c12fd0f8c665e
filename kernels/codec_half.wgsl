fn words(n: u32) -> u32 {
    return (n + 1u) / 2u;
}

fn one(h: u32) -> u32 {
    let v = widen(h);
    // A compiler may assume that NaN does not occur, and some lose it in exp and tanh. GUARD is false for functions that
    // look at NaN themselves.
    if ({{GUARD}} && is_nan(v)) {
        return h;
    }
    return narrow(apply(v));
}

// With an odd n the last word's upper half is padding: it is computed with and never looked at.
fn map(w: u32) -> u32 {
    return one(w & 0xffffu) | (one(w >> 16u) << 16u);
}
