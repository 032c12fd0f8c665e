fn words(n: u32) -> u32 {
    return n;
}

fn map(v: {{ACC}}) -> {{ACC}} {
    return apply(v);
}
