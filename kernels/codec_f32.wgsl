fn words(n: u32) -> u32 {
    return n;
}

// A compiler may assume that NaN does not occur, and some lose it in exp and tanh: it is told apart by its bits.
fn map(v: f32) -> f32 {
    let bits = bitcast<u32>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return v;
    }
    return apply(v);
}
