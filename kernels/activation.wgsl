// Activations and their backward forms. EXPR is the op's expression: x the argument (or the forward result), b the
// incoming gradient. STORE is the buffers' element (u32 for f16 and bf16: one word holds two neighbours, and one
// invocation owns the whole word), ACC the arithmetic; CODEC gives `words`, `map`, `is_nan`, `negative`, `dead`. No loop: a
// driver may cut loops short, and the planner launches one invocation per word anyway.

struct Params { n: u32, alpha: {{ACC}} }

@group(0) @binding(0) var<storage, read> x: array<{{STORE}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{STORE}}>;
@group(0) @binding(2) var<uniform> p: Params;

// The same with an incoming gradient.
@group(0) @binding(0) var<storage, read> g: array<{{STORE}}>;
@group(0) @binding(1) var<storage, read> saved: array<{{STORE}}>;
@group(0) @binding(2) var<storage, read_write> dx: array<{{STORE}}>;
@group(0) @binding(3) var<uniform> q: Params;

fn apply(x: {{ACC}}, b: {{ACC}}, alpha: {{ACC}}) -> {{ACC}} {
    return {{EXPR}};
}

{{CODEC}}

// WGSL has no error function. Odd polynomial x + x q(x^2) below 0.92, 1 - e^(t p(t)) with t = |x| beyond (see
// kernel/cpu/activation.rs for the coefficients). Error, with WGSL's roundings to either neighbour (2^-23, at most 1 ulp
// each): below 0.92 q's own error is at most 2 ulp of its largest partial sum, 0.38, times t: 0.8 ulp; the product 0.2;
// the sum 1; the fit 0.2. Beyond, e^r has 3 + 2|r| ulp of at most 0.19 and r's 9 roundings of at most |r|, together
// 0.19 (3 + 11 * 1.65) = 4 in units of 2^-23, which is 8 ulp of erf below 1; the difference 1. Below 10 ulp.
fn erf(x: f32) -> f32 {
    let t = min(abs(x), 4.0);
    let s = t * t;
    let q = ((((-5.9973038e-4 * s + 4.9944303e-3) * s - 2.6767459e-2) * s + 0.11281839) * s - 0.37612497) * s + 0.12837915;
    var r = ((-4.9543265e-6 * t + 4.5777968e-5) * t + 4.8581334e-5) * t - 2.9273713e-3;
    r = (((r * t + 2.2669614e-2) * t - 0.10525839) * t - 0.6356275) * t - 1.1285512;
    let y = select(1.0 - exp(r * t), t + t * q, t < 0.92);
    return select(y, -y, x < 0.0);
}

// 1 / (1 + e^-v).
fn logistic(v: f32) -> f32 {
    return select(1.0, exp(v), v < 0.0) / (1.0 + exp(-abs(v)));
}

// The standard normal distribution, and x times its density, which is zero in f32 beyond 20.
fn normal(x: f32) -> f32 {
    return 0.5 * (1.0 + erf(x * 0.70710678));
}
fn x_density(x: f32) -> f32 {
    let w = clamp(x, -20.0, 20.0);
    return w * (0.39894228 * exp(-0.5 * w * w));
}

// Twice the argument of gelu's tanh form, for (1 + tanh u) / 2 = 1 / (1 + e^-2u). Beyond 20 all is 0 or 1 in f32, and
// squares stay finite.
fn twice(x: f32) -> f32 {
    let w = clamp(x, -20.0, 20.0);
    return 1.5957691 * w * (1.0 + 0.044715 * w * w);
}
fn tanh_slope(x: f32) -> f32 {
    let w = clamp(x, -20.0, 20.0);
    let v = twice(w);
    return logistic(v) * (1.0 + w * logistic(-v) * (1.5957691 * (1.0 + 0.134145 * w * w)));
}

@compute @workgroup_size({{GROUP}})
fn forward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(p.n)) {
        y[i] = map(x[i], x[i], p.alpha);
    }
}

@compute @workgroup_size({{GROUP}})
fn backward(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(q.n)) {
        dx[i] = map(saved[i], g[i], q.alpha);
    }
}
