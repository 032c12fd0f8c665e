// The number rules in f64, which has no pow: SPIR-V's extended instructions end at f32 there.

// Not v != v, which SPIR-V's ordered comparison makes false.
fn n_is_nan(v: f64) -> bool {
    return !(v == v);
}

fn n_neg(v: f64) -> f64 {
    return -v;
}

fn n_abs(v: f64) -> f64 {
    return abs(v);
}

fn n_sign(v: f64) -> f64 {
    if (n_is_nan(v)) {
        return v;
    }
    return select(select(f64(0.0), f64(-1.0), v < f64(0.0)), f64(1.0), v > f64(0.0));
}

fn n_sqrt(v: f64) -> f64 {
    if (v == f64(0.0)) {
        return v;
    }
    return sqrt(v);
}

// Of equal numbers the first.
fn n_max(v: f64, w: f64) -> f64 {
    if (n_is_nan(v) || (v >= w && !n_is_nan(w))) {
        return v;
    }
    return w;
}

fn n_min(v: f64, w: f64) -> f64 {
    if (n_is_nan(v) || (v <= w && !n_is_nan(w))) {
        return v;
    }
    return w;
}
