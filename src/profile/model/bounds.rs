//! Which side of a curve is faster where that is plain: straight bounds of both sides' times, worked out beforehand. Most
//! calls are far from the crossing and need no more.

use crate::base::{Cost, Features};
use crate::profile::Entry;

use super::curve::{BEYOND, Curve, Extent, Side, padded_by};
use super::lanes::{F4, MOST_EXPONENT};
use super::{deciding, most_operations};

/// What bounds are linear in: operations, bytes read, bytes written, outer, 1; then, dearer by padding, operations per byte
/// written and operations, or operations alone, whichever is less.
const TERMS: usize = 8;
const OPS: usize = 0;
const READ: usize = 1;
const WRITTEN: usize = 2;
const OUTER: usize = 3;
const ONE: usize = 4;
const PADDED_DEPTH: usize = 5;
const PADDED_OPS: usize = 6;
const ALONE_OPS: usize = 7;

/// Bounds are wider by this share, far more than all rounding errors of a curve and of a bound: some ten of 6e-8.
const SLACK: f64 = 1e-5;

/// Coefficients smaller than this or larger than its inverse count as 0 or are not bounded at all: f32 could not hold their
/// products with 64-bit numbers.
const LEAST: f32 = 1e-18;

/// Bounds of one side's seconds. `None` above: there is none that is linear in these terms.
struct Bounds {
    below: [f64; TERMS],
    above: Option<[f64; TERMS]>,
}

impl Bounds {
    fn of(side: &Side, span: &[[f64; 2]; 4]) -> Bounds {
        let factors = side.factors.iter().copied();
        let (low, high) = match side.factors.is_empty() {
            true => (1.0, 1.0),
            false => (factors.clone().fold(f64::MAX, f64::min), factors.fold(0.0, f64::max)),
        };
        let scaled = |terms: [f64; TERMS], by: f64| terms.map(|t| t * by);
        Bounds {
            below: scaled(below(side, span), low * (1.0 - SLACK)),
            above: above(side).map(|terms| scaled(terms, high * (1.0 + SLACK))),
        }
    }
}

/// Least factor of [`Side::under`]: a limit below 1 is no mistake that a file is refused for.
fn least(most: f64) -> f64 {
    if most > 0.0 { most.min(1.0) } else { 1.0 }
}

fn below(side: &Side, span: &[[f64; 2]; 4]) -> [f64; TERMS] {
    let mut terms = [0.0; TERMS];
    terms[ONE] = side.fixed_s;
    (terms[READ], terms[WRITTEN], terms[OUTER]) = (side.read_s, side.written_s, side.outer_s);
    // Neither padding nor waves that are not full make less of the arithmetic.
    let (shared, filled) = (least(side.wave_most), least(side.fill_most));
    let [[_, flops], [_, read], [_, written], _] = *span;
    let arithmetic = flops * side.flop_s >= (read + written) * side.byte_s;
    if side.serial || arithmetic {
        terms[OPS] += side.flop_s * shared;
        terms[WRITTEN] += side.result_s * shared;
    }
    // The longer of both is no less than either.
    if side.serial || !arithmetic {
        terms[READ] += side.byte_s * filled;
        terms[WRITTEN] += side.byte_s * filled;
    }
    terms
}

fn above(side: &Side) -> Option<[f64; TERMS]> {
    let mut terms = [0.0; TERMS];
    let (read, written, outer) = (side.read_s, side.written_s, side.outer_s);
    (terms[ONE], terms[READ], terms[WRITTEN], terms[OUTER]) = (side.fixed_s, read, written, outer);
    // The longer of both is no more than their sum.
    let per_byte = side.byte_s + if side.cache > 0.0 { side.miss_s } else { 0.0 };
    if side.teamed {
        terms[ONE] += side.team_s;
        // Alone; or, stepped, just begun a second wave.
        let most = side.wave_most.max(2.0);
        (terms[PADDED_OPS], terms[ALONE_OPS]) = (side.flop_s * most, side.flop_s * most);
        terms[WRITTEN] += side.result_s * most;
        let filled = per_byte * side.fill_most.max(1.0);
        terms[READ] += filled;
        terms[WRITTEN] += filled;
        return Some(terms);
    }
    // Whole waves and one more. An extent is no less than the bytes written.
    let wave = side.wave.max(0.0);
    terms[PADDED_OPS] = side.flop_s;
    terms[PADDED_DEPTH] = side.flop_s * wave;
    // Or as dear as the least call. An extent is at least one byte.
    let most = if side.wave_most > 0.0 { side.wave_most } else { wave };
    terms[ALONE_OPS] = side.flop_s * most.max(if side.stepped { 2.0 } else { 1.0 });
    terms[WRITTEN] += side.result_s;
    terms[ONE] += side.result_s * wave;
    let filled = match side.extent {
        // Neither bytes read nor bytes written are more than the larger of them.
        Extent::Larger => {
            terms[ONE] += 2.0 * side.fill * per_byte;
            per_byte
        }
        Extent::Output if side.fill <= 0.0 => per_byte,
        Extent::Output if side.fill_most > 0.0 => per_byte * side.fill_most.max(1.0),
        Extent::Output => return None,
    };
    terms[READ] += filled;
    terms[WRITTEN] += filled;
    Some(terms)
}

/// What is above 0 where the device surely takes longer, and where the CPU does.
fn longer_by(curve: &Curve) -> Option<[[f64; TERMS]; 2]> {
    if let Some([low, high]) = curve.change {
        let wider = |v: f64| v - SLACK * v.abs();
        // Bytes beyond these, or these beyond the bytes.
        let beyond = |sign: f64, bytes: f64| {
            let mut terms = [0.0; TERMS];
            (terms[READ], terms[WRITTEN], terms[ONE]) = (wider(sign), wider(sign), wider(-sign * bytes));
            terms
        };
        return Some([beyond(-1.0, low), beyond(1.0, high)]);
    }
    let [cpu, device] = [&curve.cpu, &curve.device].map(|side| Bounds::of(side, &curve.span));
    // At least the one's time, less at most the other's.
    let less = |one: Bounds, other: [f64; TERMS]| std::array::from_fn(|t| one.below[t] - other[t]);
    let above = [cpu.above?, device.above?];
    Some([less(device, above[0]), less(cpu, above[1])])
}

/// A curve's answer where it is plain. Small, and at any address, as there is one for each entry of a profile.
#[derive(Clone, Copy, Debug)]
pub(in crate::profile) struct Plain {
    /// Coefficients of what the device takes longer at least, and of what the CPU takes longer at least, two terms in each eight
    /// bytes: both sides of the one, then of the other.
    longer: [[u8; 8]; TERMS / 2],
    /// Where the curve surely covers operations, bytes read, bytes written and operations per byte written: biased exponents of
    /// the powers of two from which on, and then of those below which.
    covers: [u8; 8],
    /// Logarithm of the larger of both sides' tiles. It pads what is subtracted from the other's bound: by no less than its own.
    tile: u8,
}

/// What bounds say of a call.
#[derive(Clone, Copy, Debug)]
pub(in crate::profile) struct Says {
    /// Whether they say anything.
    pub(in crate::profile) plain: bool,
    /// If so, what.
    pub(in crate::profile) device_wins: bool,
}

/// A number with the exponent of an f32 and 8 bits, as in bf16.
#[derive(Clone, Copy, Debug)]
struct Low(u16);

impl Low {
    /// The nearest number that is not above; `None` if that is too large.
    fn at_most(v: f64) -> Option<Low> {
        let near = v as f32;
        let low = match if f64::from(near) <= v { near } else { near.next_down() } {
            tiny if (0.0..LEAST).contains(&tiny) => 0.0,
            tiny if (-LEAST..0.0).contains(&tiny) => -LEAST,
            low => low,
        };
        // To cut a negative number off makes it larger: one more then, which may be infinite.
        let more = u32::from(low.is_sign_negative() && low.to_bits() & 0xFFFF != 0);
        let low = Low(((low.to_bits() >> 16) + more) as u16);
        (low.value().abs() < 1.0 / LEAST).then_some(low)
    }

    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// A share of a number that is more than it may be wrong by.
const HAIR: f64 = 1e-6;

/// Biased exponent in f32 of the least power of two that a number must reach to be this one or more. A number is never below 1.
fn from_on(least: f64) -> u8 {
    if least <= 1.0 {
        return 127;
    }
    let least = least * (1.0 + HAIR);
    let begun = u64::from(least.to_bits() << 12 != 0);
    exponent(least).saturating_add(begun).min(MOST_EXPONENT.into()) as u8
}

/// The same of the largest power of two below which a number is surely at most this one; 0: there is none.
fn up_to(most: f64) -> u8 {
    exponent(most * (1.0 - HAIR)).min(MOST_EXPONENT.into()) as u8
}

/// The exponent of a number as f32 has it, or 0 of one below all that f32 has.
fn exponent(v: f64) -> u64 {
    (v.to_bits() >> 52).saturating_sub(1023 - 127)
}

impl Plain {
    /// Nothing is plain.
    pub(in crate::profile) const NEVER: Plain = Plain {
        longer: [[0; 8]; TERMS / 2],
        covers: [MOST_EXPONENT, MOST_EXPONENT, MOST_EXPONENT, MOST_EXPONENT, 0, 0, 0, 0],
        tile: 0,
    };

    /// Of an entry. A curve that a file would be refused for has no bounds.
    pub(in crate::profile) fn of(entry: &Entry) -> Plain {
        let of = |curve| Self::of_curve(curve, most_operations(entry, curve));
        deciding(entry).filter(|c| c.fault().is_none()).and_then(of).unwrap_or(Plain::NEVER)
    }

    fn of_curve(curve: &Curve, operations: f64) -> Option<Plain> {
        let mut longer = [[0; 8]; TERMS / 2];
        for (i, terms) in longer_by(curve)?.into_iter().enumerate() {
            for (t, term) in terms.into_iter().enumerate() {
                let at = 4 * (t % 2) + 2 * i;
                longer[t / 2][at..at + 2].copy_from_slice(&Low::at_most(term)?.0.to_le_bytes());
            }
        }
        let tile = curve.cpu.tile.max(curve.device.tile).max(1).ilog2();
        let mut covers = [0; 8];
        for (i, [low, high]) in curve.span.into_iter().enumerate() {
            let most = if i == 0 { operations } else { high * BEYOND };
            (covers[i], covers[i + 4]) = (from_on(low / BEYOND), up_to(most));
        }
        Some(Plain { longer, covers, tile: u8::try_from(tile).ok().filter(|log| *log < 16)? })
    }

    /// What the curve says of a call, [`super::device_wins`], if `plain`. Without a branch on what is found but for padding, so
    /// that who asks for many places in turn need not wait for each answer.
    #[inline(always)]
    pub(in crate::profile) fn says(&self, call: &Features) -> Says {
        let Cost { flops, read, written } = call.cost;
        // As `Shape::outer`.
        let outer = if call.dims[1] > 0 { call.dims[0] } else { 0 };
        let copies = F4::of([flops, read, written, outer]);
        let (ops, depth) = (copies.first(), copies.first() / copies.upper().first().max(1.0));
        let [least, most] = F4::powers(self.covers);
        let axes = copies.with_last(depth).max(F4::splat(1.0));
        let covered = axes.at_least(least) & axes.below(most) == 0b1111;
        let [ab, cd, ef, gh] = self.longer.map(F4::upper_halves);
        let plainly = ab.times(copies.lower_twice()).plus(cd.times(copies.upper_twice()));
        let [fixed, alone] = [ef.times(F4::pairs(1.0, depth)), gh.times(F4::splat(ops))];
        let dearer = fixed.upper().plus(alone).max(alone.upper());
        let padded = F4::splat(padded_by(&call.dims, 1 << self.tile) as f32);
        let longer = plainly.plus(plainly.upper()).plus(fixed).plus(dearer.times(padded));
        let [device, cpu] = [0b01, 0b10].map(|side| F4::splat(0.0).below(longer) & side != 0);
        Says { plain: covered & (device != cpu), device_wins: cpu }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::MOST_DIMS;
    use crate::base::rng::Philox;
    use crate::profile::{Verdict, model};

    /// Numbers by seed and place.
    struct Dice {
        rng: Philox,
        at: u64,
    }

    impl Dice {
        fn unit(&mut self) -> f64 {
            self.at += 1;
            self.rng.u64(0, self.at) as f64 / u64::MAX as f64
        }
        fn yes(&mut self) -> bool {
            self.unit() < 0.5
        }
        /// From 10^low to 10^high, evenly by decades.
        fn log(&mut self, low: f64, high: f64) -> f64 {
            10f64.powf(low + (high - low) * self.unit())
        }
        /// The same, or nothing.
        fn maybe(&mut self, low: f64, high: f64) -> f64 {
            if self.yes() { self.log(low, high) } else { 0.0 }
        }

        fn side(&mut self) -> Side {
            let teamed = self.unit() < 0.3;
            let knots = (self.unit() * 6.0) as usize;
            let most = |d: &mut Dice| if teamed { d.log(0.0, 2.0) } else { d.maybe(-0.5, 2.0) };
            Side {
                fixed_s: self.log(-7.0, -4.0),
                read_s: self.maybe(-11.0, -9.0),
                written_s: self.maybe(-11.0, -9.0),
                flop_s: self.log(-12.0, -9.0),
                result_s: self.maybe(-11.0, -9.0),
                outer_s: self.maybe(-9.0, -6.0),
                byte_s: self.log(-12.0, -10.0),
                miss_s: self.maybe(-12.0, -10.0),
                cache: self.maybe(3.0, 7.0),
                wave: self.maybe(2.0, 6.0),
                wave_most: most(self),
                deep: self.maybe(0.0, 3.0),
                hinged: self.yes(),
                stepped: self.yes(),
                teamed,
                team_s: self.maybe(-6.0, -4.0),
                fill: self.maybe(2.0, 6.0),
                fill_most: most(self),
                tile: if self.yes() { 1 << (self.unit() * 8.0) as u32 } else { 0 },
                serial: self.yes(),
                extent: if self.yes() { Extent::Larger } else { Extent::Output },
                error: 0.0,
                knots: [self.unit() * 10.0, 0.5 + 4.0 * self.unit()],
                factors: (0..knots).map(|_| self.log(-0.3, 0.3)).collect(),
            }
        }

        fn call(&mut self) -> Features {
            let mut dims = [0; MOST_DIMS];
            let several = (self.unit() * 4.0) as usize + 1;
            dims[..several].iter_mut().for_each(|d| *d = self.log(0.0, 9.0 / several as f64) as u64);
            let work = dims[..several].iter().product::<u64>();
            let cost = Cost {
                flops: (work as f64 * self.log(-1.0, 2.0)) as u64,
                read: (work as f64 * self.log(-2.0, 1.0)) as u64,
                written: (work as f64 * self.log(-2.0, 1.0)) as u64,
            };
            Features { work: u128::from(work), cost, dims }
        }

        fn entry(&mut self) -> Entry {
            let span = [[self.log(0.0, 2.0), self.log(9.0, 12.0)], [1.0, 1e10], [1.0, self.log(7.0, 10.0)], [1.0, 1e4]];
            let low = self.log(2.0, 8.0);
            let change = (self.unit() < 0.3).then(|| [low, low * self.log(0.0, 0.3)]);
            let curve = Curve { span, change, cpu: self.side(), device: self.side() };
            assert_eq!(curve.fault(), None);
            Entry { verdict: Verdict::Crossing, curve: Some(curve), ..Entry::default() }
        }
    }

    /// Answers that the curve does not give, and the share of answers, over so many calls.
    fn wrong(bounds: impl Fn(&Entry) -> Plain) -> (usize, f64) {
        let mut dice = Dice { rng: Philox::new(7), at: 0 };
        let (mut wrong, mut told) = (0, 0);
        for _ in 0..2_000 {
            let entry = dice.entry();
            let plain = bounds(&entry);
            for _ in 0..100 {
                let call = dice.call();
                let says = plain.says(&call);
                if says.plain {
                    told += 1;
                    wrong += usize::from(model::device_wins(&entry, &call) != Some(says.device_wins));
                }
            }
        }
        (wrong, told as f64 / 200_000.0)
    }

    #[test]
    fn what_is_plain_is_what_the_curve_says() {
        let (wrong, share) = wrong(Plain::of);
        assert_eq!(wrong, 0);
        assert!(share > 0.3, "{share} of the calls are plain");
    }

    /// Bounds that are too narrow would be seen.
    #[test]
    fn a_wrong_bound_is_seen() {
        let faults: [(&str, fn(&mut Curve)); 8] = [
            ("no change", |c| c.change = None),
            ("a change that ends sooner", |c| {
                c.change.iter_mut().for_each(|[_, high]| *high *= 0.98);
            }),
            ("a wave less", |c| c.cpu.wave = 0.0),
            ("no padding", |c| c.device.tile = 0),
            ("no limit of what is alone", |c| c.cpu.wave_most = 1.0),
            ("no cache", |c| c.device.cache = 0.0),
            ("no correction", |c| c.cpu.factors.clear()),
            ("covers all", |c| c.span = [[1.0, 1e18]; 4]),
        ];
        for (name, fault) in faults {
            let (wrong, _) = wrong(|entry| {
                let mut entry = entry.clone();
                entry.curve.as_mut().into_iter().for_each(fault);
                Plain::of(&entry)
            });
            assert!(wrong > 0, "{name}");
        }
        let (wrong, _) = wrong(|entry| Plain::of(&Entry { verdict: Verdict::Never, ..entry.clone() }));
        assert!(wrong > 0, "stretched beyond what the threshold leaves to it");
    }

    /// A number that passes is covered, however f32 rounds it; what does not pass is less than two octaves away from an end.
    #[test]
    fn the_ends_of_what_is_covered_are_safe() {
        let mut dice = Dice { rng: Philox::new(9), at: 0 };
        let power = |exponent: u8| f32::from_bits(u32::from(exponent) << 23);
        for _ in 0..100_000 {
            let end = if dice.yes() { dice.log(-2.0, 19.0) } else { (dice.unit() * 60.0).floor().exp2() };
            let near = [end, end.next_down(), end.next_up(), f64::from(end as f32), f64::from((end as f32).next_up())];
            for v in near.into_iter().chain([dice.log(0.0, 19.0)]).filter(|v| *v >= 1.0) {
                let reaches = v as f32 >= power(from_on(end));
                assert!(!reaches || v >= end, "{v} reaches {end}");
                assert!(reaches || v < 4.0 * end, "{v} should reach {end}");
                let below = (v as f32) < power(up_to(end));
                assert!(!below || v <= end, "{v} is below {end}");
                assert!(below || v > end / 4.0, "{v} should be below {end}");
            }
        }
        assert_eq!([from_on(0.5), from_on(1.0), from_on(1e300)], [127, 127, MOST_EXPONENT]);
        assert_eq!([up_to(0.0), up_to(1.0), up_to(1e300)], [0, 126, MOST_EXPONENT]);
        let call = dice.call();
        assert!(!Plain::NEVER.says(&call).plain);
    }

    #[test]
    fn who_may_not_decide_has_no_plain_answer() {
        let mut dice = Dice { rng: Philox::new(8), at: 0 };
        let mut entry = dice.entry();
        let calls: Vec<Features> = (0..100).map(|_| dice.call()).collect();
        let told = |e: &Entry| calls.iter().filter(|c| Plain::of(e).says(c).plain).count();
        assert!(told(&entry) > 0);
        for verdict in [Verdict::Unsafe, Verdict::Unmeasured] {
            assert_eq!(told(&Entry { verdict, ..entry.clone() }), 0);
        }
        // A program may make what a file must not say: no panic, and no answer from it.
        let unsound: [fn(&mut Curve); 4] = [
            |c| c.span = [[0.0, 0.0]; 4],
            |c| c.span = [[1.0, f64::NAN]; 4],
            |c| c.cpu.fixed_s = -1.0,
            |c| c.device.tile = 3,
        ];
        for spoil in unsound {
            let mut spoilt = entry.clone();
            spoilt.curve.as_mut().into_iter().for_each(spoil);
            assert_eq!(told(&spoilt), 0);
        }
        entry.curve = None;
        assert_eq!(told(&entry), 0);
    }
}
