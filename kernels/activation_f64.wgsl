fn words(n: u32) -> u32 {
    return n;
}

fn negative(x: f64) -> bool {
    return x < f64(0);
}

fn dead(x: f64) -> bool {
    return x <= f64(0);
}

fn map(x: f64, b: f64, alpha: f64) -> f64 {
    return apply(x, b, alpha);
}
