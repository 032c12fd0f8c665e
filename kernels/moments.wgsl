// Normalisation by mean and variance. Statistics are taken of x seen as [a, channels, inner], per channel over its
// a * inner = n elements. All sums are of distances from the channel's first element (0 where that is not finite), so a
// large mean costs no digits. In segments, so that no invocation loops long. ACC is the arithmetic; LOADS gives load(i)
// and others for the short operands, CELLS lo, hi and cell: how f16 and bf16 are laid into words of two.

struct Parts { channels: u32, inner: u32, n: u32, segment: u32, parts: u32 }
struct Join { channels: u32, inner: u32, n: u32, segment: u32, parts: u32, epsilon: {{ACC}} }
struct Store { channels: u32 }
struct Running { channels: u32, keep: {{ACC}}, take: {{ACC}} }
struct Layer { rows: u32, n: u32 }
struct Batch { total: u32, channels: u32, inner: u32 }
struct Infer { total: u32, channels: u32, inner: u32, epsilon: {{ACC}} }

@group(0) @binding(0) var<storage, read> x: array<{{X}}>;
@group(0) @binding(1) var<storage, read_write> stats_out: array<{{ACC}}>;
@group(0) @binding(2) var<uniform> q: Parts;

@group(0) @binding(1) var<storage, read> stats: array<{{ACC}}>;
@group(0) @binding(2) var<storage, read_write> moments_out: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> j: Join;

@group(0) @binding(0) var<storage, read> results: array<{{ACC}}>;
@group(0) @binding(1) var<storage, read_write> first_out: array<{{CELL}}>;
@group(0) @binding(2) var<storage, read_write> second_out: array<{{CELL}}>;
@group(0) @binding(3) var<uniform> s: Store;
@group(0) @binding(3) var<storage, read_write> running_mean: array<{{CELL}}>;
@group(0) @binding(4) var<storage, read_write> running_variance: array<{{CELL}}>;
@group(0) @binding(5) var<uniform> u: Running;

@group(0) @binding(1) var<storage, read> moments: array<{{ACC}}>;
@group(0) @binding(2) var<storage, read> gamma: array<{{X}}>;
@group(0) @binding(3) var<storage, read> beta: array<{{X}}>;
@group(0) @binding(4) var<storage, read_write> y: array<{{CELL}}>;
@group(0) @binding(5) var<uniform> l: Layer;
@group(0) @binding(5) var<uniform> b: Batch;

@group(0) @binding(1) var<storage, read> given_gamma: array<{{X}}>;
@group(0) @binding(2) var<storage, read> given_beta: array<{{X}}>;
@group(0) @binding(3) var<storage, read> given_mean: array<{{X}}>;
@group(0) @binding(4) var<storage, read> given_variance: array<{{X}}>;
@group(0) @binding(5) var<storage, read_write> z: array<{{CELL}}>;
@group(0) @binding(6) var<uniform> f: Infer;

var<workgroup> tree: array<{{ACC}}, {{GROUP}}>;

{{LOADS}}

{{CELLS}}

// Where the first element is an infinity or NaN, distances are from 0.
fn shift_of(v: {{ACC}}) -> {{ACC}} {
    return select({{ACC}}(0), v, abs(v) <= {{ACC}}({{LARGEST}}));
}

fn group_sum(local: u32) {
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            tree[local] += tree[local + half];
        }
        workgroupBarrier();
    }
}

// Element i of a channel of [a, channels, inner].
fn place(channel: u32, i: u32) -> u32 {
    return (i / q.inner * q.channels + channel) * q.inner + i % q.inner;
}

// Group (channel, part): mean distance of its segment, then the sum of squared deviations from that mean.
@compute @workgroup_size({{GROUP}})
fn stats_part(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let inside = flat < q.channels * q.parts;
    let channel = select(0u, flat / q.parts, inside);
    let begin = select(0u, (flat % q.parts) * q.segment, inside);
    let end = select(0u, min(q.n, begin + q.segment), inside);
    let shift = shift_of(load(channel * q.inner));
    var sum = {{ACC}}(0);
    for (var i = begin + local; i < end; i += {{GROUP}}u) {
        sum += load(place(channel, i)) - shift;
    }
    tree[local] = sum;
    group_sum(local);
    let mean = tree[0] / {{ACC}}(max(end - begin, 1u));
    workgroupBarrier();
    sum = {{ACC}}(0);
    for (var i = begin + local; i < end; i += {{GROUP}}u) {
        let d = load(place(channel, i)) - shift - mean;
        sum += d * d;
    }
    tree[local] = sum;
    group_sum(local);
    if (local == 0u && inside) {
        stats_out[flat] = mean;
        stats_out[q.channels * q.parts + flat] = tree[0];
    }
}

// One invocation per channel joins its parts (Chan, Golub, LeVeque 1979): mean distance, 1 / sqrt(variance + epsilon),
// mean and variance.
@compute @workgroup_size({{GROUP}})
fn stats_join(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let channel = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (channel >= j.channels) {
        return;
    }
    var mean = stats[channel * j.parts];
    var squares = stats[(j.channels + channel) * j.parts];
    if (j.parts > 1u) {
        var sum = {{ACC}}(0);
        for (var p = 0u; p < j.parts; p++) {
            sum += stats[channel * j.parts + p] * {{ACC}}(min(j.segment, j.n - p * j.segment));
        }
        mean = sum / {{ACC}}(j.n);
        squares = {{ACC}}(0);
        for (var p = 0u; p < j.parts; p++) {
            let d = stats[channel * j.parts + p] - mean;
            let length = {{ACC}}(min(j.segment, j.n - p * j.segment));
            squares += stats[(j.channels + channel) * j.parts + p] + d * d * length;
        }
    }
    let variance = squares / {{ACC}}(j.n);
    moments_out[channel] = mean;
    moments_out[j.channels + channel] = {{ACC}}(1) / sqrt(variance + j.epsilon);
    moments_out[2u * j.channels + channel] = shift_of(load(channel * j.inner)) + mean;
    moments_out[3u * j.channels + channel] = variance;
}

// What layernorm stores of the moments: mean and rstd.
@compute @workgroup_size({{GROUP}})
fn store_layer(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < s.channels) {
        first_out[w] = cell(results[2u * s.channels + lo(w)], results[2u * s.channels + hi(w)]);
        second_out[w] = cell(results[s.channels + lo(w)], results[s.channels + hi(w)]);
    }
}

// What batchnorm stores of them: mean and variance; running statistics keep a share of what they were.
@compute @workgroup_size({{GROUP}})
fn store_batch(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < u.channels) {
        let m0 = results[2u * u.channels + lo(w)];
        let m1 = results[2u * u.channels + hi(w)];
        let v0 = results[3u * u.channels + lo(w)];
        let v1 = results[3u * u.channels + hi(w)];
        first_out[w] = cell(m0, m1);
        second_out[w] = cell(v0, v1);
        let mean = running_mean[w];
        let variance = running_variance[w];
        running_mean[w] = cell(u.keep * low(mean) + u.take * m0, u.keep * high(mean) + u.take * m1);
        running_variance[w] = cell(u.keep * low(variance) + u.take * v0, u.keep * high(variance) + u.take * v1);
    }
}

fn layer(i: u32) -> {{ACC}} {
    let row = i / l.n;
    let d = load(i) - shift_of(load(row * l.n)) - moments[row];
    return d * moments[l.rows + row] * load_gamma(i % l.n) + load_beta(i % l.n);
}

// y = (x - mean) * rstd * gamma + beta over rows of n: gamma and beta belong to columns, moments to rows.
@compute @workgroup_size({{GROUP}})
fn apply_layer(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < l.rows * l.n) {
        // With an odd number the last word's upper half is padding: any element will do.
        y[w] = cell(layer(lo(w)), layer(min(hi(w), l.rows * l.n - 1u)));
    }
}

fn batch(i: u32) -> {{ACC}} {
    let channel = i / b.inner % b.channels;
    let d = load(i) - shift_of(load(channel * b.inner)) - moments[channel];
    return d * moments[b.channels + channel] * load_gamma(channel) + load_beta(channel);
}

// The same over [a, channels, inner]: everything belongs to channels.
@compute @workgroup_size({{GROUP}})
fn apply_batch(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < b.total) {
        y[w] = cell(batch(lo(w)), batch(min(hi(w), b.total - 1u)));
    }
}

fn infer(i: u32) -> {{ACC}} {
    let channel = i / f.inner % f.channels;
    let rstd = {{ACC}}(1) / sqrt(load_variance(channel) + f.epsilon);
    return (load(i) - load_mean(channel)) * rstd * load_given_gamma(channel) + load_given_beta(channel);
}

// The same with given statistics.
@compute @workgroup_size({{GROUP}})
fn batchnorm_infer(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < f.total) {
        z[w] = cell(infer(lo(w)), infer(min(hi(w), f.total - 1u)));
    }
}
