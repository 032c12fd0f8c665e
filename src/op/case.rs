//! Case names back to cases, and the data of a case.

use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::base::{Attrs, Case, Code, DType, Error, Fill, HostTensor, Result, os, rng::Philox};
use crate::kernel::cpu::simd::{self, Isa, dispatch};

use super::{OpDesc, Range, Role, find};

/// Reads a case name: `gemm/f32/m64,n64,k64/transA=1/uniform`. `+variant` and `@device` suffixes are not part of it.
pub fn parse(name: &str) -> Result<Case> {
    let bad = |why: String| Error::new(Code::BadArgument, format!("case '{name}': {why}"));
    let parts: Vec<&str> = name.split('/').collect();
    let [op, dtype, shape, attrs, fill] = parts[..] else {
        return Err(bad("expected op/dtype/sizes/attributes/data, e.g. add/f32/n1000/-/uniform".into()));
    };
    let op = find(op)?;
    let dtype: DType = dtype.parse()?;
    let fill: Fill = fill.parse()?;
    let sizes: Vec<&str> = shape.split(',').collect();
    if sizes.len() != op.dims.len() {
        return Err(bad(format!("expected sizes {}", op.dims.join(","))));
    }
    let mut dims = Vec::new();
    for (dim, text) in op.dims.iter().zip(sizes) {
        let number = text.strip_prefix(dim).ok_or_else(|| bad(format!("'{text}' should start with '{dim}'")))?;
        dims.push(number.parse::<u64>().map_err(|_| bad(format!("'{number}' is not a size")))?);
    }
    op.case(dtype, &dims, parse_attrs(op, attrs)?, fill)
}

/// Reads attributes: `alpha=2,transA=1`; `-` and the empty text mean none.
pub fn parse_attrs(op: &OpDesc, text: &str) -> Result<Attrs> {
    let mut attrs = Attrs::new();
    if text == "-" || text.is_empty() {
        return Ok(attrs);
    }
    for pair in text.split(',') {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Error::new(Code::BadArgument, format!("attribute '{pair}': expected name=value")).op(op.name)
        })?;
        let known: Vec<_> = op.attrs.iter().map(|d| d.name).collect();
        let decl = op.attrs.iter().find(|d| d.name == name).ok_or_else(|| {
            Error::new(Code::BadArgument, format!("no attribute '{name}'; the op has: {}", known.join(" "))).op(op.name)
        })?;
        attrs = attrs.with(name, decl.parse(value)?);
    }
    Ok(attrs)
}

/// The data of every read operand (roles In and InOut), in order. Equal on every machine.
pub fn inputs(op: &OpDesc, case: &Case) -> Result<Vec<HostTensor>> {
    let shapes = (op.shapes)(case)?;
    let rng = Philox::new(case.seed());
    let mut out = Vec::new();
    for (i, operand) in op.operands.iter().enumerate() {
        if operand.role == Role::Out {
            continue;
        }
        let range = op.domain[out.len()];
        let mut t = HostTensor::untouched(op.operand_dtype(i, case), &shapes[i])?;
        fill_tensor(&mut t, case.fill, range, &rng, i as u64);
        out.push(t);
    }
    Ok(out)
}

/// Values that break careless kernels: signed zeros, infinities, NaN, subnormals, extremes, multiples of pi.
fn specials(dtype: DType) -> Vec<f64> {
    let max = crate::base::exact::max_finite(dtype);
    let tiny = crate::base::exact::ulp(dtype, 0.0);
    let min = dtype.min_exponent().map_or(0.0, |e| 2f64.powi(e));
    let pi = std::f64::consts::PI;
    vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        max,
        -max,
        min,
        -min,
        tiny,
        -tiny,
        min / 2.0,
        pi,
        -pi,
        2.0 * pi,
        pi / 2.0,
        0.5,
        -0.5,
        100.0,
        -100.0,
    ]
}

/// The range of an operand's numbers. Few integers lie in a range that is narrow for fractions, and where nearly all are one
/// number, a wrong place or a part that is left out shows in nothing.
fn range_of(dtype: DType, Range(low, high): Range) -> Range {
    const NARROW: f64 = 16.0;
    let wide = if dtype.is_float() || high - low > NARROW {
        Range(low, high)
    } else {
        Range(if low < 0.0 { -100.0 } else { 0.0 }, 100.0)
    };
    let Some((least, _)) = dtype.int_range() else { return wide };
    Range(wide.0.max(least as f64), wide.1)
}

fn fill_tensor(t: &mut HostTensor, fill: Fill, range: Range, rng: &Philox, stream: u64) {
    let (dtype, len) = (t.dtype, t.len());
    let Range(low, high) = range_of(dtype, range);
    if let Fill::Bits(part) = fill {
        return bit_patterns(t, u64::from(part) * len);
    }
    let special = if dtype.is_float() { specials(dtype) } else { integer_specials(dtype) };
    let uniform = |i: u64| low + rng.unit(stream, i) * (high - low);
    // What is timed is made of these, over and over: as many at a time as the processor can.
    let even = match fill {
        Fill::Uniform => Some((low, high - low)),
        Fill::Positive => Some((0.0, high.abs().max(f64::MIN_POSITIVE))),
        _ => None,
    };
    if let Some((from, span)) = even {
        let isa = Isa::detect();
        return write_all(t, |first, out| dispatch(isa, Units { rng, stream, first, from, span, out }));
    }
    let value = |i: u64| match fill {
        Fill::Integer => {
            let r = (rng.u64(stream, i) % 9) as f64 - 4.0;
            r.clamp(low.ceil().min(0.0), high.floor().max(1.0))
        }
        Fill::Special => {
            let pick = rng.u64(stream, i);
            if pick & 1 == 0 { special[(pick >> 1) as usize % special.len()] } else { uniform(i) }
        }
        Fill::Constant => low + 0.75 * (high - low),
        Fill::Wide => wide(dtype, rng, stream, i, low < 0.0),
        Fill::Tiny => alike(dtype, rng, stream, i, |least| (least - 4.0, 0.45 * least)),
        Fill::Huge => alike(dtype, rng, stream, i, |least| (-0.38 * least, -0.49 * least)),
        Fill::Offset => {
            let at = high.abs().max(low.abs());
            at + (rng.u64(stream, i) % 64) as f64 * crate::base::exact::ulp(dtype, at)
        }
        // Pairs x, -x(1 + j/2^20): what is left of a sum is a millionth of its terms.
        Fill::Cancelling if low < 0.0 => {
            let x = low + rng.unit(stream, i / 2) * (high - low);
            let j = (rng.u64(stream, i) >> 8) % 5;
            if i.is_multiple_of(2) { x } else { -x * (1.0 + j as f64 / 1_048_576.0) }
        }
        Fill::Cancelling => uniform(i),
        Fill::Onehot => {
            let hot = rng.u64(stream, u64::MAX) % len.max(1);
            if i == hot { high } else { 0.0 }
        }
        Fill::Bits(_) | Fill::Uniform | Fill::Positive => 0.0,
    };
    write_all(t, |first, out| (first..).zip(out).for_each(|(i, v)| *v = value(i)));
}

/// Uniform numbers from `from` to `from + span`, for the indices from `first` on.
struct Units<'a> {
    rng: &'a Philox,
    stream: u64,
    first: u64,
    from: f64,
    span: f64,
    out: &'a mut [f64],
}

impl simd::Job for Units<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: simd::Style>(self) {
        self.rng.units(self.stream, self.first, self.out);
        self.out.iter_mut().for_each(|v| *v = self.from + *v * self.span);
    }
}

/// The bit patterns from `first` on, wrapping at the dtype's width.
fn bit_patterns(t: &mut HostTensor, first: u64) {
    let size = t.dtype.size() as usize;
    for (i, element) in (0u64..).zip(t.bytes_mut().chunks_exact_mut(size)) {
        element.copy_from_slice(&first.wrapping_add(i).to_le_bytes()[..size]);
    }
}

/// A number whose exponent is uniform over 7/16 of the dtype's range around 1, so that sums of 65,000 products stay
/// finite; integers of every length.
fn wide(dtype: DType, rng: &Philox, stream: u64, i: u64, signed: bool) -> f64 {
    let top = match (dtype.min_exponent(), dtype.int_range()) {
        (Some(e), _) => f64::from(-e) * 7.0 / 16.0,
        (None, Some((_, high))) => (high as f64).log2(),
        (None, None) => 0.0,
    };
    let bottom = if dtype.is_float() { -top } else { 0.0 };
    let magnitude = (bottom + rng.unit(stream, i) * (top - bottom)).exp2();
    let negative = signed && rng.u64(stream + 0x100, i) & 1 == 1;
    if negative { -magnitude } else { magnitude }
}

/// A number whose exponent is within 3 of the case's own, which lies in the range made of the dtype's least exponent.
fn alike(dtype: DType, rng: &Philox, stream: u64, i: u64, range: fn(f64) -> (f64, f64)) -> f64 {
    let sign = if rng.u64(stream + 0x100, i) & 1 == 1 { -1.0 } else { 1.0 };
    let Some(least) = dtype.min_exponent().map(f64::from) else { return (rng.u64(stream, i) % 3) as f64 };
    let (low, high) = range(least);
    let middle = low + rng.unit(stream, u64::MAX) * (high - low);
    sign * (middle + 6.0 * rng.unit(stream, i) - 3.0).exp2()
}

fn integer_specials(dtype: DType) -> Vec<f64> {
    let bits = (dtype.size() * 8) as i32;
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let top = if signed { 2f64.powi(bits - 1) - 1.0 } else { 2f64.powi(bits) - 1.0 };
    let bottom = if signed { -2f64.powi(bits - 1) } else { 0.0 };
    let mut all = vec![0.0, 1.0, -1.0, top, bottom, 2.0, top - 1.0];
    if bits >= 32 {
        // Half way between two numbers of 8 and of 24 digits, and a little beyond: what is cut off decides.
        for digits in [8, 24] {
            let tie = 2f64.powi(bits - 2) + 2f64.powi(bits - 2 - digits);
            all.extend([tie, tie + if bits == 32 { 1.0 } else { 1024.0 }]);
        }
    }
    all
}

/// Elements that one thread writes at a time.
const SHARE: usize = 1 << 18;

/// Numbers that are made before they become elements.
const SOME: usize = 256;

/// Does each piece of work, on as many threads as there are processors. They end with it: none is awake when something is timed.
fn on_threads<T: Send>(work: impl ExactSizeIterator<Item = T> + Send, each: impl Fn(T) + Sync) {
    let threads = os::allowed_cpus().len().min(work.len());
    if threads < 2 {
        return work.for_each(each);
    }
    let work = Mutex::new(work);
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    let some = || {
        while let Some(piece) = next() {
            each(piece);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(some);
        }
        some();
    });
}

/// Writes what `values(first, ..)` makes, some elements from `first` on at a time, to all; by all threads of the pool that
/// the caller runs in, or by threads of its own.
fn write_all(t: &mut HostTensor, values: impl Fn(u64, &mut [f64]) + Sync) {
    let pooled = rayon::current_thread_index().is_some();
    macro_rules! each {
        ($t:ty, $cast:expr) => {{
            let cast: fn(f64) -> $t = $cast;
            let write = |(share, bytes): (usize, &mut [u8])| {
                let first = share * SHARE;
                let mut made = [0.0; SOME];
                for (i, some) in bytes.chunks_mut(SOME * size_of::<$t>()).enumerate() {
                    let made = &mut made[..some.len() / size_of::<$t>()];
                    values((first + i * SOME) as u64, made);
                    for (b, v) in some.chunks_exact_mut(size_of::<$t>()).zip(made) {
                        b.copy_from_slice(&cast(*v).to_le_bytes());
                    }
                }
            };
            let share = SHARE * size_of::<$t>();
            match pooled {
                true => t.bytes_mut().par_chunks_mut(share).enumerate().for_each(write),
                false => on_threads(t.bytes_mut().chunks_mut(share).enumerate(), write),
            }
        }};
    }
    match t.dtype {
        DType::F32 => each!(f32, |v| v as f32),
        DType::F64 => each!(f64, |v| v),
        DType::F16 => each!(half::f16, half::f16::from_f64),
        DType::BF16 => each!(half::bf16, half::bf16::from_f64),
        DType::I8 => each!(i8, |v| v.floor() as i8),
        DType::I16 => each!(i16, |v| v.floor() as i16),
        DType::I32 => each!(i32, |v| v.floor() as i32),
        DType::I64 => each!(i64, |v| v.floor() as i64),
        DType::U8 => each!(u8, |v| v.floor() as u8),
        DType::U16 => each!(u16, |v| v.floor() as u16),
        DType::U32 => each!(u32, |v| v.floor() as u32),
        DType::U64 => each!(u64, |v| v.floor() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Tier;

    #[test]
    fn data_depends_on_the_name_alone() {
        let a = parse("add/f32/n1000/-/uniform").unwrap();
        let op = find("add").unwrap();
        let x = inputs(op, &a).unwrap();
        assert_eq!(x, inputs(op, &a).unwrap());
        assert_ne!(x[0], x[1], "operands differ");
        let b = parse("add/f32/n1001/-/uniform").unwrap();
        assert_ne!(inputs(op, &b).unwrap()[0].bytes()[..100], x[0].bytes()[..100]);
        let v = x[0].to_vec::<f32>().unwrap();
        let Range(low, high) = op.domain[0];
        let range = low as f32..high as f32;
        assert!(v.iter().all(|v| range.contains(v)) && v.iter().any(|v| *v < 0.9 * range.start));
    }

    /// Whoever writes which part, in a pool or on threads of its own.
    #[test]
    fn long_data_are_the_same_on_one_thread_on_several_and_in_a_pool() {
        for name in ["add/f32/n1000003/-/uniform", "add/bf16/n600000/-/wide", "add/i64/n300001/-/integer"] {
            let case = parse(name).unwrap();
            let op = find("add").unwrap();
            let own = inputs(op, &case).unwrap();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            assert_eq!(own, pool.install(|| inputs(op, &case)).unwrap(), "{name}");
            let rng = Philox::new(case.seed());
            if name.contains("f32") {
                let Range(low, high) = op.domain[1];
                for i in [0, SHARE as u64 - 1, SHARE as u64, 1_000_002] {
                    let want = (low + rng.unit(1, i) * (high - low)) as f32;
                    assert_eq!(own[1].to_vec::<f32>().unwrap()[i as usize], want, "{i}");
                }
            }
        }
    }

    #[test]
    fn every_piece_of_work_is_done_once() {
        for count in [0, 1, 2, 1000] {
            let done = Mutex::new(vec![0; count]);
            on_threads(0..count, |i| done.lock().unwrap()[i] += 1);
            assert_eq!(*done.lock().unwrap(), vec![1; count]);
        }
    }

    #[test]
    fn special_data_holds_nan_and_infinities() {
        let c = parse("exp/f32/n200/-/special").unwrap();
        let v = inputs(find("exp").unwrap(), &c).unwrap()[0].to_vec::<f32>().unwrap();
        assert!(
            v.iter().any(|v| v.is_nan()) && v.iter().any(|v| v.is_infinite()) && v.iter().any(|v| v.is_subnormal())
        );
    }

    #[test]
    fn tiny_huge_and_offset_data_are_what_they_say() {
        let of = |name: &str| {
            let c = parse(name).unwrap();
            inputs(find(c.op).unwrap(), &c).unwrap()[0].to_vec::<f32>().unwrap()
        };
        let span = |v: &[f32]| v.iter().fold((f32::INFINITY, 0f32), |(a, b), x| (a.min(x.abs()), b.max(x.abs())));
        for n in [500, 501, 502] {
            let (low, high) = span(&of(&format!("nrm2/f32/n{n}/-/tiny")));
            assert!(
                high <= 2f32.powi(-53) && (low == 0.0 || high / low <= 65.0 || low < 1e-43),
                "{n}: {low:e} {high:e}"
            );
            let (low, high) = span(&of(&format!("nrm2/f32/n{n}/-/huge")));
            assert!(low >= 2f32.powi(44) && high <= 2f32.powi(65) && high / low <= 65.0, "{n}: {low:e} {high:e}");
        }
        let v = of("layernorm/f32/m4,n300/-/offset");
        let mean = v.iter().map(|x| f64::from(*x)).sum::<f64>() / 1200.0;
        let deviation = (v.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 1200.0).sqrt();
        assert!(mean.abs() > 1e4 * deviation && deviation > 0.0, "{mean} {deviation}");
        let whole = parse("nrm2/f32/n9/-/tiny").unwrap().fill;
        assert!(Fill::EXTRA.contains(&whole) && !Fill::ALL.contains(&whole));
    }

    #[test]
    fn bad_names_are_refused() {
        for name in [
            "",
            "add",
            "add/f32/n1/-",
            "add/f32/m1/-/uniform",
            "add/f32/n-1/-/uniform",
            "add/f99/n1/-/uniform",
            "nope/f32/n1/-/uniform",
            "add/f32/n1/-/odd",
            "gemm/f32/m1,n1,k1/alpha=x/uniform",
        ] {
            assert!(parse(name).is_err(), "{name}");
        }
    }

    /// Where nearly all numbers are one, a place that is wrong or a part that is left out shows in nothing.
    #[test]
    fn integers_are_not_nearly_all_one_number() {
        let (mut seen, mut nearly) = (0, Vec::new());
        for op in crate::op::all() {
            for dtype in op.dtypes.iter().copied().filter(|d| !d.is_float()) {
                for fill in [Fill::Uniform, Fill::Positive, Fill::Integer, Fill::Constant] {
                    let Some(spec) = op.specs(Tier::Full, dtype).into_iter().find(|s| s.fill == fill) else { continue };
                    let case = op.case(dtype, &spec.dims, spec.attrs, fill).unwrap();
                    let read = op.operands.iter().enumerate().filter(|(_, o)| o.role != Role::Out);
                    for ((_, operand), t) in read.zip(inputs(op, &case).unwrap()) {
                        if t.dtype.is_float() || t.len() < 64 {
                            continue;
                        }
                        seen += 1;
                        let mut values: Vec<&[u8]> = t.bytes().chunks(t.dtype.size() as usize).collect();
                        values.sort_unstable();
                        values.dedup();
                        let zero = values.len() == 1 && values[0].iter().all(|b| *b == 0);
                        let least = if fill == Fill::Integer { 4 } else { 32 };
                        if zero || (fill != Fill::Constant && values.len() < least.min(t.len() as usize / 4)) {
                            nearly.push(format!("{case} {}: {}", operand.name, values.len()));
                        }
                    }
                }
            }
        }
        assert!(seen > 200, "{seen}");
        assert!(nearly.is_empty(), "{} of {seen}: {:#?}", nearly.len(), &nearly[..nearly.len().min(20)]);
    }
}
