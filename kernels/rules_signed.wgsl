// The number rules of signed integers. TOP is the highest even power of two.

fn n_neg(v: {{ACC}}) -> {{ACC}} {
    return {{ACC}}(0) - v;
}

fn n_abs(v: {{ACC}}) -> {{ACC}} {
    return select(v, n_neg(v), v < {{ACC}}(0));
}

fn n_sign(v: {{ACC}}) -> {{ACC}} {
    return select(select({{ACC}}(0), {{ACC}}(-1), v < {{ACC}}(0)), {{ACC}}(1), v > {{ACC}}(0));
}

// A negative exponent gives 0 except for 1 and -1.
fn n_pow(v: {{ACC}}, w: {{ACC}}) -> {{ACC}} {
    if (w < {{ACC}}(0)) {
        if (v == {{ACC}}(-1) && (w & {{ACC}}(1)) == {{ACC}}(0)) {
            return {{ACC}}(1);
        }
        return select({{ACC}}(0), v, v == {{ACC}}(1) || v == {{ACC}}(-1));
    }
    var power = {{ACC}}(1);
    var base = v;
    for (var rest = w; rest > {{ACC}}(0); rest = rest >> 1u) {
        if ((rest & {{ACC}}(1)) == {{ACC}}(1)) {
            power = power * base;
        }
        base = base * base;
    }
    return power;
}

fn n_max(v: {{ACC}}, w: {{ACC}}) -> {{ACC}} {
    return select(w, v, v >= w);
}

fn n_min(v: {{ACC}}, w: {{ACC}}) -> {{ACC}} {
    return select(w, v, v <= w);
}

// floor(sqrt(v)), digit by digit.
fn n_sqrt(v: {{ACC}}) -> {{ACC}} {
    var rest = v;
    var root = {{ACC}}(0);
    for (var bit = {{ACC}}(1) << {{TOP}}u; bit > {{ACC}}(0); bit = bit >> 2u) {
        let trial = root + bit;
        root = root >> 1u;
        if (rest >= trial) {
            rest = rest - trial;
            root = root + bit;
        }
    }
    return root;
}
