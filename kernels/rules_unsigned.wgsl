// The number rules of unsigned integers. TOP is the highest even power of two.

fn n_sign(v: {{ACC}}) -> {{ACC}} {
    return select({{ACC}}(0), {{ACC}}(1), v > {{ACC}}(0));
}

fn n_pow(v: {{ACC}}, w: {{ACC}}) -> {{ACC}} {
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
