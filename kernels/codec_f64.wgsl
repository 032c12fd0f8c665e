fn words(n: u32) -> u32 {
    return n;
}

fn map(v: f64) -> f64 {
    return apply(v);
}
