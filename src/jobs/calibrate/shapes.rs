//! Shapes of a family other than its sweep: skinny ones, sizes between the powers of two, other batches and filters.

use std::collections::HashSet;

use crate::base::rng::Philox;
use crate::base::{Attrs, Case, DType, Fill, Result};
use crate::op::{Family, OpDesc, Unit};

/// How far a dimension is stretched in half of the shapes; in the others by 2.
const SKINNY: f64 = 16.0;

/// Attempts at a shape before the sweep's own is taken.
const ATTEMPTS: u64 = 12;

/// The size in the op's unit of an amount of work: the work itself, or its cube root rounded down for `Dim`.
pub(super) fn size_of(unit: Unit, work: u128) -> u64 {
    if unit != Unit::Dim {
        return u64::try_from(work).unwrap_or(u64::MAX);
    }
    let mut root = (work as f64).cbrt() as u128;
    while root.pow(3) > work {
        root -= 1;
    }
    while (root + 1).pow(3) <= work {
        root += 1;
    }
    root as u64
}

/// So many shapes of a family with sizes between `range`'s ends, in the op's unit, log-uniform; equal for equal seeds. Any
/// first part of them is spread over the range. With `corners` the first ones stretch one dimension each as far as any is.
/// Errors: where the sweep itself has no case of some size.
pub(super) fn shapes(
    op: &OpDesc,
    dtype: DType,
    family: &Family,
    range: (u64, u64),
    seed: u64,
    n: usize,
    corners: bool,
) -> Result<Vec<Case>> {
    let rng = Philox::new(seed ^ crate::base::rng::fnv1a64(op.name.as_bytes()));
    let span = (range.1 as f64 / range.0 as f64).max(1.0).ln();
    let (first, last) = ((family.sweep)(range.0), (family.sweep)(range.1));
    let grows: Vec<bool> = first.iter().zip(&last).map(|(a, b)| a != b).collect();
    let (mut out, mut seen) = (Vec::with_capacity(n), HashSet::new());
    for i in 0..n as u64 {
        // Multiples of the golden ratio, from a start that the seed chooses.
        let u = (rng.unit(0, 0) + i as f64 * 0.618_033_988_749_895).fract();
        let size = (range.0 as f64 * (span * u).exp()).round() as u64;
        let plain = (family.sweep)(size.clamp(range.0, range.1));
        let mut found = None;
        for attempt in 0..ATTEMPTS {
            let draw = |what: u64| rng.unit(1 + what, i * ATTEMPTS + attempt);
            // Later attempts stay nearer to the sweep.
            let nearer = 1.0 + attempt as f64 / 4.0;
            let reach = if draw(0) < 0.5 { SKINNY.ln() } else { 2f64.ln() } / nearer;
            let turn: Vec<f64> = if corners && i < plain.len() as u64 {
                (0..plain.len() as u64).map(|d| SKINNY.ln() / nearer * if d == i { 1.0 } else { -1.0 }).collect()
            } else {
                (0..plain.len() as u64).map(|d| reach * (2.0 * draw(1 + d) - 1.0)).collect()
            };
            let dims = skewed(&plain, &grows, &turn, draw);
            let Ok(case) = op.case(dtype, &dims, Attrs::new(), Fill::Uniform) else { continue };
            let size = size_of(op.unit, (op.work)(&case));
            let inside = range.0 <= size && size <= range.1;
            if inside && (op.shapes)(&case).is_ok() && op.family(&case).is_some_and(|f| f.name == family.name) {
                found = Some(case);
                break;
            }
        }
        let case = match found {
            Some(case) => case,
            None => op.case(dtype, &plain, Attrs::new(), Fill::Uniform)?,
        };
        if seen.insert(case.dims.clone()) {
            out.push(case);
        }
    }
    Ok(out)
}

/// Numbers of `most` cases of a pool that lie far, in operations and bytes, from `chosen` and from each other, the farthest first:
/// what a form says where nothing was measured is a guess.
pub(super) fn farthest(op: &OpDesc, chosen: &[Case], pool: &[Case], most: usize) -> Vec<usize> {
    let place = |c: &Case| {
        let cost = (op.cost)(c);
        [cost.flops, cost.read, cost.written].map(|v| (v.max(1) as f64).ln())
    };
    let apart = |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    let places: Vec<[f64; 3]> = pool.iter().map(place).collect();
    let mut nearest = vec![f64::INFINITY; pool.len()];
    let closer = |to: &[f64; 3], nearest: &mut Vec<f64>| {
        nearest.iter_mut().zip(&places).for_each(|(n, p)| *n = n.min(apart(p, to)));
    };
    chosen.iter().for_each(|c| closer(&place(c), &mut nearest));
    let mut out = Vec::new();
    while out.len() < most {
        let best = nearest.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, _)) = best.filter(|(_, distance)| *distance > 0.0) else { break };
        out.push(best);
        closer(&places[best], &mut nearest);
    }
    out
}

/// Dimensions that grow in the sweep keep their product and change their proportions by e^turn each; every other
/// one that is more than 1 is, half the time, anything from 1 to four times itself, at least to 8.
fn skewed(plain: &[u64], grows: &[bool], turn: &[f64], draw: impl Fn(u64) -> f64) -> Vec<u64> {
    let growing = grows.iter().filter(|g| **g).count().max(1) as f64;
    let centre = turn.iter().zip(grows).filter(|(_, g)| **g).map(|(t, _)| t).sum::<f64>() / growing;
    let of = |d: usize| {
        let v = plain[d] as f64;
        let new = if grows[d] {
            v * (turn[d] - centre).exp()
        } else if draw(40 + d as u64) < 0.5 {
            ((4.0 * v).max(8.0)).powf(draw(80 + d as u64))
        } else {
            v
        };
        (new.round() as u64).max(1)
    };
    (0..plain.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op;

    #[test]
    fn sizes_of_work() {
        for n in [1u64, 2, 16, 999, 2048, 1 << 20] {
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3)), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3) + 1), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n + 1).pow(3) - 1), n);
        }
        assert_eq!(size_of(Unit::Dim, 0), 0);
        assert_eq!(size_of(Unit::Elements, 77), 77);
        assert_eq!(size_of(Unit::Elements, u128::MAX), u64::MAX);
    }

    #[test]
    fn they_belong_to_their_family_and_are_not_its_sweep() {
        for op in op::all().filter(|o| !matches!(o.unit, op::Unit::Bytes | op::Unit::Calls)) {
            let range = op.unit.default_range();
            for family in op.families {
                let cases = shapes(op, op.dtypes[0], family, range, 3, 24, true).unwrap();
                assert!(cases.len() >= 20, "{} {}: {}", op.name, family.name, cases.len());
                let sizes: Vec<u64> = cases.iter().map(|c| size_of(op.unit, (op.work)(c))).collect();
                for (c, size) in cases.iter().zip(&sizes) {
                    assert_eq!(op.family(c).map(|f| f.name), Some(family.name), "{c}");
                    assert!(*size <= range.1 + range.1 / 8, "{c}: {size}");
                }
                let span = (*sizes.iter().max().unwrap() as f64 / *sizes.iter().min().unwrap() as f64).ln();
                assert!(span > 0.6 * (range.1 as f64 / range.0 as f64).ln(), "{} {}: {sizes:?}", op.name, family.name);
            }
        }
    }

    #[test]
    fn the_first_of_a_pool_is_the_farthest_from_what_was_chosen() {
        let conv = op::find("conv2d").unwrap();
        let of = |seed, n| shapes(conv, DType::F32, &conv.families[0], (16, 1 << 20), seed, n, false).unwrap();
        let (chosen, pool) = (of(1, 12), of(2, 300));
        let apart = |a: &Case, b: &Case| {
            let (a, b) = ((conv.cost)(a), (conv.cost)(b));
            let pairs = [(a.flops, b.flops), (a.read, b.read), (a.written, b.written)];
            pairs.map(|(a, b)| (a as f64 / b as f64).ln().powi(2)).iter().sum::<f64>()
        };
        let nearest = |c: &Case| chosen.iter().map(|k| apart(c, k)).fold(f64::INFINITY, f64::min);
        let far = farthest(conv, &chosen, &pool, 12);
        assert_eq!(far.len(), 12);
        let most = pool.iter().map(nearest).fold(0.0, f64::max);
        assert!((nearest(&pool[far[0]]) / most - 1.0).abs() < 1e-9, "{} of {most}", nearest(&pool[far[0]]));
        assert!(farthest(conv, &pool, &pool, 3).is_empty(), "what was chosen is not chosen again");
    }

    #[test]
    fn skinny_ones_and_other_seeds() {
        let gemm = op::find("gemm").unwrap();
        let narrow = &gemm.families[1];
        let cases = shapes(gemm, DType::F32, narrow, (16, 2048), 1, 24, false).unwrap();
        let aspect = |c: &Case| c.dim("m").max(c.dim("n")) / c.dim("m").min(c.dim("n"));
        let mut aspects: Vec<u64> = cases.iter().map(aspect).collect();
        aspects.sort_unstable();
        aspects.dedup();
        assert!(aspects.len() > 10, "{aspects:?}");
        assert!(cases.iter().filter(|c| !c.dims.iter().any(|(_, d)| d.is_power_of_two())).count() > 8);
        let dims = |seed| -> Vec<_> {
            shapes(gemm, DType::F32, narrow, (16, 2048), seed, 8, false).unwrap().into_iter().map(|c| c.dims).collect()
        };
        assert_eq!(dims(1), dims(1));
        assert_ne!(dims(1), dims(2));
    }
}
