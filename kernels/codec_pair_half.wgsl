fn words(n: u32) -> u32 {
    return (n + 1u) / 2u;
}

fn two(v: u32, w: u32) -> u32 {
    return narrow(apply(widen(v), widen(w)));
}

// With an odd n the last word's upper half is padding: it is computed with and never looked at.
fn zip(v: u32, w: u32) -> u32 {
    return two(v & 0xffffu, w & 0xffffu) | (two(v >> 16u, w >> 16u) << 16u);
}

fn stretched_one(i: u32) -> u32 {
    let at = place(i);
    let v = a[at.x / 2u] >> ((at.x & 1u) * 16u);
    let w = b[at.y / 2u] >> ((at.y & 1u) * 16u);
    return two(v & 0xffffu, w & 0xffffu);
}

// Beyond the last element the last one again, whose place exists.
fn stretched(i: u32) -> u32 {
    return stretched_one(2u * i) | (stretched_one(min(2u * i + 1u, p.n - 1u)) << 16u);
}
