// y[i] = x[i] in another number type, by integer arithmetic on the bits alone: WGSL's own conversions may round either
// way, flush subnormals and leave what is out of range open, and no 64-bit feature is needed. One invocation per element
// of y, per word of two for f16 and bf16; no loops.

struct Params { n: u32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

// Bits of an element; is it a float; has it a sign; of a float the stored digits of the significand and the bias.
const IN_BITS: u32 = {{IN_BITS}}u;
const IN_FLOAT: bool = {{IN_FLOAT}};
const IN_SIGNED: bool = {{IN_SIGNED}};
const IN_DIGITS: u32 = {{IN_DIGITS}}u;
const IN_BIAS: i32 = {{IN_BIAS}};
const OUT_BITS: u32 = {{OUT_BITS}}u;
const OUT_FLOAT: bool = {{OUT_FLOAT}};
const OUT_SIGNED: bool = {{OUT_SIGNED}};
const OUT_DIGITS: u32 = {{OUT_DIGITS}}u;
const OUT_BIAS: i32 = {{OUT_BIAS}};

// (-1)^negative * m * 2^e with the low word of m first; or infinity, or NaN.
struct Value { negative: bool, infinite: bool, nan: bool, m: vec2<u32>, e: i32 }

fn shl(v: vec2<u32>, s: u32) -> vec2<u32> {
    if (s == 0u) {
        return v;
    }
    if (s >= 64u) {
        return vec2<u32>(0u, 0u);
    }
    if (s >= 32u) {
        return vec2<u32>(0u, v.x << (s - 32u));
    }
    return vec2<u32>(v.x << s, (v.y << s) | (v.x >> (32u - s)));
}

fn shr(v: vec2<u32>, s: u32) -> vec2<u32> {
    if (s == 0u) {
        return v;
    }
    if (s >= 64u) {
        return vec2<u32>(0u, 0u);
    }
    if (s >= 32u) {
        return vec2<u32>(v.y >> (s - 32u), 0u);
    }
    return vec2<u32>((v.x >> s) | (v.y << (32u - s)), v.y >> s);
}

fn add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn negated(v: vec2<u32>) -> vec2<u32> {
    return add(~v, vec2<u32>(1u, 0u));
}

fn leading_zeros(v: vec2<u32>) -> u32 {
    return select(countLeadingZeros(v.y), 32u + countLeadingZeros(v.x), v.y == 0u);
}

fn is_zero(v: vec2<u32>) -> bool {
    return (v.x | v.y) == 0u;
}

fn greater(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y > b.y || (a.y == b.y && a.x > b.x);
}

// 2^s.
fn power(s: u32) -> vec2<u32> {
    return shl(vec2<u32>(1u, 0u), s);
}

// 2^s - 1.
fn ones(s: u32) -> vec2<u32> {
    return shr(vec2<u32>(0xffffffffu, 0xffffffffu), 64u - s);
}

fn element(i: u32) -> vec2<u32> {
    if (IN_BITS == 16u) {
        return vec2<u32>((x[i / 2u] >> (16u * (i % 2u))) & 0xffffu, 0u);
    }
    if (IN_BITS == 32u) {
        return vec2<u32>(x[i], 0u);
    }
    return vec2<u32>(x[2u * i], x[2u * i + 1u]);
}

fn decode(bits: vec2<u32>) -> Value {
    let top = (shr(bits, IN_BITS - 1u).x & 1u) == 1u;
    var v: Value;
    v.negative = IN_SIGNED && top;
    if (!IN_FLOAT) {
        v.m = bits;
        if (v.negative) {
            // The sign is spread over the upper word of short integers first.
            v.m = negated(bits | ~ones(IN_BITS));
        }
        return v;
    }
    let field = i32(shr(bits, IN_DIGITS).x & u32(2 * IN_BIAS + 1));
    let fraction = bits & ones(IN_DIGITS);
    let special = field == 2 * IN_BIAS + 1;
    v.infinite = special && is_zero(fraction);
    v.nan = special && !is_zero(fraction);
    v.m = select(fraction | power(IN_DIGITS), fraction, field == 0);
    v.e = max(field, 1) - IN_BIAS - i32(IN_DIGITS);
    return v;
}

// To an integer: integers wrap; floats are truncated and saturate, NaN is 0.
fn to_int(v: Value) -> vec2<u32> {
    if (v.nan) {
        return vec2<u32>(0u, 0u);
    }
    if (!IN_FLOAT) {
        return select(v.m, negated(v.m), v.negative);
    }
    var most = ones(OUT_BITS);
    if (OUT_SIGNED) {
        most = select(ones(OUT_BITS - 1u), power(OUT_BITS - 1u), v.negative);
    } else if (v.negative) {
        most = vec2<u32>(0u, 0u);
    }
    var m = most;
    let beyond = v.e > 0 && !is_zero(v.m) && u32(v.e) > leading_zeros(v.m);
    if (!v.infinite && !beyond) {
        let whole = select(shl(v.m, u32(max(v.e, 0))), shr(v.m, u32(max(-v.e, 0))), v.e < 0);
        m = select(whole, most, greater(whole, most));
    }
    return select(m, negated(m), v.negative);
}

// To a float, to nearest even.
fn to_float(v: Value) -> vec2<u32> {
    let sign = select(vec2<u32>(0u, 0u), power(OUT_BITS - 1u), v.negative);
    let infinity = shl(vec2<u32>(u32(2 * OUT_BIAS + 1), 0u), OUT_DIGITS);
    if (v.nan) {
        return sign | infinity | power(OUT_DIGITS - 1u);
    }
    if (v.infinite) {
        return sign | infinity;
    }
    if (is_zero(v.m)) {
        return sign;
    }
    let zeros = leading_zeros(v.m);
    let m = shl(v.m, zeros);
    // The value is m * 2^-63 * 2^exponent with the top bit of m set.
    let exponent = v.e + 63 - i32(zeros);
    if (exponent > OUT_BIAS) {
        return sign | infinity;
    }
    let short = max(1 - OUT_BIAS - exponent, 0);
    let drop = u32(63 - i32(OUT_DIGITS) + short);
    if (drop > 64u) {
        return sign;
    }
    var q = shr(m, drop);
    let half = (shr(m, drop - 1u).x & 1u) == 1u;
    let rest = !is_zero(shl(m, 65u - drop));
    if (half && (rest || (q.x & 1u) == 1u)) {
        q = add(q, vec2<u32>(1u, 0u));
    }
    // The significand's leading bit adds one to the exponent's field, a carry another.
    let field = select(u32(max(exponent + OUT_BIAS - 1, 0)), 0u, short > 0);
    return sign | add(q, shl(vec2<u32>(field, 0u), OUT_DIGITS));
}

fn converted(i: u32) -> vec2<u32> {
    if (i >= p.n) {
        return vec2<u32>(0u, 0u);
    }
    let v = decode(element(i));
    if (OUT_FLOAT) {
        return to_float(v);
    }
    return to_int(v);
}

@compute @workgroup_size({{GROUP}})
fn convert(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (OUT_BITS == 16u) {
        if (2u * i < p.n) {
            y[i] = converted(2u * i).x | (converted(2u * i + 1u).x << 16u);
        }
    } else if (i < p.n) {
        let v = converted(i);
        if (OUT_BITS == 32u) {
            y[i] = v.x;
        } else {
            y[2u * i] = v.x;
            y[2u * i + 1u] = v.y;
        }
    }
}
