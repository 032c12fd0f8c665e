fn words(n: u32) -> u32 {
    return n;
}

fn zip(v: {{ACC}}, w: {{ACC}}) -> {{ACC}} {
    return apply(v, w);
}

fn stretched(i: u32) -> {{ACC}} {
    let at = place(i);
    return apply(a[at.x], b[at.y]);
}
