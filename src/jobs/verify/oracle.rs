//! The oracle's answers, once per case for all devices: whole, or for cases too large for that a sample.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::base::rng::Philox;
use crate::base::{Case, Exact, Fill, HostTensor, Result, host};
use crate::op::expected::without_subnormals;
use crate::op::{Element, OpDesc, Reference, case};

use super::compare::coordinates;

/// Multiply-adds beyond which a double-double oracle of all elements takes too long (0.1 s of one thread each 1.4 million).
const MOST: u64 = 14_000_000;
/// The same for ops without an oracle for single elements: they have no other way.
const MOST_WHOLE: u64 = 2_000_000_000;
/// Output elements beyond which a sample is judged, if the op can compute single ones.
const MOST_ELEMENTS: u64 = 1 << 18;
/// Elements drawn at random for a sample, besides corners and tile edges.
const RANDOM: u64 = 4096;
/// Seconds of one multiply-add of the oracle: double-double, one thread; measured 73 ns on a 2.1 GHz Xeon.
const SECONDS: f64 = 70e-9;

/// Exact values of one output: of all elements, or of those at `at`.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) reference: Reference,
    /// Flat indices of a sample, ascending; `None`: all elements in order.
    pub(super) at: Option<Vec<u64>>,
}

/// Data of a case and what comes out exactly.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) inputs: Vec<HostTensor>,
    pub(super) answers: Vec<Answer>,
    flushed: OnceLock<Option<Vec<Answer>>>,
}

fn pairs(op: &OpDesc, case: &Case) -> u64 {
    (op.cost)(case).flops / 2
}

/// The reason for leaving a case out, if its oracle would take too long.
pub(super) fn too_long(op: &OpDesc, case: &Case) -> Option<String> {
    let pairs = pairs(op, case);
    (op.element.is_none() && pairs > MOST_WHOLE).then(|| format!("predicted {:.0} s of oracle", pairs as f64 * SECONDS))
}

/// Makes the data and asks the op's oracle.
pub(super) fn ask(op: &OpDesc, c: &Case) -> Result<Oracle> {
    let inputs = case::inputs(op, c)?;
    let answers = answers(op, c, &inputs)?;
    Ok(Oracle { inputs, answers, flushed: OnceLock::new() })
}

fn answers(op: &OpDesc, c: &Case, inputs: &[HostTensor]) -> Result<Vec<Answer>> {
    let shapes = (op.shapes)(c)?;
    let outputs: Vec<&Vec<u64>> = op.written().map(|i| &shapes[i]).collect();
    let mut most = 0;
    for s in &outputs {
        most = most.max(host::count(s)?);
    }
    match op.element {
        // Every bit pattern means every one: no sample.
        Some(element) if !matches!(c.fill, Fill::Bits(_)) && (most > MOST_ELEMENTS || pairs(op, c) > MOST) => {
            Ok(outputs
                .iter()
                .enumerate()
                .map(|(o, shape)| sampled(element, c, inputs, o, sample(shape, c.seed() ^ o as u64)))
                .collect())
        }
        _ => {
            let exact: Vec<_> = inputs.iter().map(Exact::read_all).collect();
            Ok((op.oracle)(c, &exact).into_iter().map(|reference| Answer { reference, at: None }).collect())
        }
    }
}

fn sampled(element: Element, c: &Case, inputs: &[HostTensor], output: usize, at: Vec<u64>) -> Answer {
    let (values, scale) = at.iter().map(|i| element(c, inputs, output, *i)).unzip();
    Answer { reference: Reference { values, scale }, at: Some(at) }
}

/// Elements to judge in a large output: all corners, places next to the borders of tiles and groups, and random ones.
/// Each kind is there for a bug of its own: tails, tiles, and what depends on neither.
pub(super) fn sample(shape: &[u64], seed: u64) -> Vec<u64> {
    let total: u64 = shape.iter().product();
    if total <= 2 * RANDOM {
        return (0..total).collect();
    }
    let rng = Philox::new(seed);
    let mut at = BTreeSet::new();
    let flat = |index: &dyn Fn(usize, u64) -> u64| {
        shape.iter().enumerate().fold(0, |acc, (d, extent)| acc * extent + index(d, *extent).min(extent - 1))
    };
    for corner in 0..1u64 << shape.len().min(8) {
        at.insert(flat(&|d, extent| if corner >> d & 1 == 1 { extent - 1 } else { 0 }));
    }
    for draw in 0..RANDOM / 4 {
        at.insert(flat(&|d, extent| {
            let r = rng.u64(1 + d as u64, draw);
            match r % 4 {
                // Next to a multiple of a usual tile or group, below or above.
                0..=2 => {
                    let tile = [16, 32, 64, 128, 256, 1024][(r >> 8) as usize % 6];
                    let border = (r >> 16) % (extent / tile + 1) * tile;
                    (border + (r >> 4) % 3).saturating_sub(1)
                }
                _ => (r >> 8) % extent,
            }
        }));
    }
    at.extend((0..RANDOM).map(|draw| rng.u64(0, draw) % total));
    // The last row's neighbours and the far end of the flat range: where 32-bit indices and tails go wrong.
    at.extend((1..=64).map(|back| total - back));
    at.extend([1u64 << 31, 1 << 30, 1 << 24].into_iter().flat_map(|n| [n - 1, n, n + 1]).filter(|i| *i < total));
    debug_assert!(at.iter().all(|i| coordinates(shape, *i).iter().zip(shape).all(|(x, d)| x < d)));
    at.into_iter().collect()
}

impl Oracle {
    /// The answers for the same data with subnormal numbers replaced by zeros; `None` if there are none.
    pub(super) fn flushed(&self, op: &OpDesc, case: &Case) -> Option<&[Answer]> {
        let answers = self.flushed.get_or_init(|| {
            let zeroed = without_subnormals(&self.inputs)?;
            answers(op, case, &zeroed).ok()
        });
        answers.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_corners_borders_and_the_end() {
        let shape = [3, 1000, 2000];
        let at = sample(&shape, 7);
        assert!(at.len() > 4096 && at.windows(2).all(|w| w[0] < w[1]));
        for corner in [0, 1999, 999 * 2000, 999 * 2000 + 1999, 2 * 2_000_000, 5_999_999] {
            assert!(at.contains(&corner), "{corner}");
        }
        let beside = at.iter().filter(|i| matches!(*i % 2000 % 16, 0 | 1 | 15)).count();
        assert!(beside > 800, "{beside}");
        assert_eq!(at, sample(&shape, 7), "the same on every machine");
        assert_eq!(sample(&[5, 7], 1), (0..35).collect::<Vec<_>>());
    }
}
