fn words(n: u32) -> u32 {
    return (n + 1u) / 2u;
}

// With an odd n the last word's upper half is padding: it is computed with and never looked at.
fn map(x: u32, b: u32, alpha: f32) -> u32 {
    let low = narrow(apply(widen(x & 0xffffu), widen(b & 0xffffu), alpha));
    let high = narrow(apply(widen(x >> 16u), widen(b >> 16u), alpha));
    return low | (high << 16u);
}
