//! Activation functions and their backward forms: one template, an op supplies one expression. And the error function.
//!
//! erf: odd polynomial x + x·q(x²) for |x| < 0.92, 1 - e^(t·p(t)) with t = |x| beyond. Coefficients are minimax fits by
//! Remez' exchange, weighted so that the error relative to erf is smallest: f32 1.6e-8 and 2.2e-10, f64 1.1e-18 and
//! 1.2e-19. What remains is rounding. Near zero: q's in the product x·q, at most 0.13 of the result, and the last sum,
//! 0.5 ulp. Beyond: the error of the exponential, 1.5 ulp of erfc and |t·p|·u of its argument, where erfc <= 0.2·erf: below
//! 1 ulp; and the last difference. Below 2 ulp in all (tested).

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::elementary;
use super::lanes::{both, each};
use super::math::Real;
use super::simd::{Job, Style, Textbook, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// f32 and f64 with the error function.
pub trait Wide: Real {
    /// The error function.
    fn erf<S: Style>(self) -> Self;
    /// x·(1 + erf(x/√2))/2; -0 below -40.
    fn gelu<S: Style>(self) -> Self;
    /// x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2; -0 below -40.
    fn gelu_tanh<S: Style>(self) -> Self;
    /// x within ±limit; NaN passes through.
    fn clamped(self, limit: f64) -> Self;
}

/// Tail and centre alike by erf: the relative error grows where 1 + erf cancels.
#[inline(always)]
fn gelu_by_erf<S: Style, R: Wide>(x: R) -> R {
    let x = if x < R::of(-40.0) { R::of(-40.0) } else { x };
    x * (R::of(0.5) * (R::of(1.0) + (x * R::of(std::f64::consts::FRAC_1_SQRT_2)).erf::<S>()))
}

/// By the logistic function of twice tanh's argument.
#[inline(always)]
fn gelu_by_logistic<S: Style, R: Wide>(x: R) -> R {
    let x = if x < R::of(-40.0) { R::of(-40.0) } else { x };
    x * twice(x).logistic::<S>()
}

/// Twice the argument of gelu_tanh's tanh.
#[inline(always)]
pub fn twice<R: Wide>(x: R) -> R {
    R::of(1.595_769_121_605_730_8) * x * (R::of(1.0) + R::of(0.044_715) * x * x)
}

macro_rules! wide {
    (@gelu f32, $x:ident, $S:ident) => {
        if $S::TEXTBOOK { gelu_by_erf::<$S, f32>($x) } else { elementary::gelu::<$S>($x) }
    };
    (@gelu f64, $x:ident, $S:ident) => {
        gelu_by_erf::<$S, f64>($x)
    };
    (@gelu_tanh f32, $x:ident, $S:ident) => {
        if $S::TEXTBOOK { gelu_by_logistic::<$S, f32>($x) } else { elementary::gelu_tanh::<$S>($x) }
    };
    (@gelu_tanh f64, $x:ident, $S:ident) => {
        gelu_by_logistic::<$S, f64>($x)
    };
    ($t:tt, $end:literal, [$($near:expr),*], [$($far:expr),*]) => {
        impl Wide for $t {
            #[inline(always)]
            fn erf<S: Style>(self) -> Self {
                let t = self.abs();
                let t = if t > $end { $end } else { t };
                let s = t * t;
                let near = horner::<S, $t>(s, &[$($near),*]).fma::<S>(t, t);
                // Of an argument between -38 and 0.
                let far = 1.0 - Real::exp_near::<S>(horner::<S, $t>(t, &[$($far),*]) * t);
                (if t < 0.92 { near } else { far }).copysign(self)
            }
            #[inline(always)]
            fn gelu<S: Style>(self) -> Self {
                wide!(@gelu $t, self, S)
            }
            #[inline(always)]
            fn gelu_tanh<S: Style>(self) -> Self {
                wide!(@gelu_tanh $t, self, S)
            }
            #[inline(always)]
            fn clamped(self, limit: f64) -> Self {
                let limit = limit as $t;
                let x = if self > limit { limit } else { self };
                if x < -limit { -limit } else { x }
            }
        }
    };
}

/// Horner's scheme; coefficients from the highest power down.
#[inline(always)]
fn horner<S: Style, R: Real>(x: R, c: &[R]) -> R {
    let mut acc = c[0];
    for &k in &c[1..] {
        acc = acc.fma::<S>(x, k);
    }
    acc
}

wide!(
    f32,
    4.0,
    [-5.997_303_8e-4, 4.994_43e-3, -2.676_745_9e-2, 0.112_818_39, -0.376_124_97, 0.128_379_15],
    [
        -4.954_326_5e-6,
        4.577_796_8e-5,
        4.858_133_4e-5,
        -2.927_371_3e-3,
        2.266_961_4e-2,
        -0.105_258_39,
        -0.635_627_5,
        -1.128_551_2
    ]
);
wide!(
    f64,
    6.0,
    [
        -8.339_177_464_996_041e-10,
        1.398_366_943_278_664_2e-8,
        -1.626_371_820_659_466_2e-7,
        1.645_396_368_807_473e-6,
        -1.492_521_735_242_022_5e-5,
        0.000_120_553_175_621_884_06,
        -0.000_854_832_666_074_418_7,
        0.005_223_977_620_018_609,
        -0.026_866_170_644_651_55,
        0.112_837_916_709_529_28,
        -0.376_126_389_031_837_15,
        0.128_379_167_095_512_6
    ],
    [
        7.686_799_320_676_636e-15,
        -3.595_409_017_066_582_5e-13,
        7.668_898_662_998_27e-12,
        -9.722_126_121_841_921e-11,
        7.861_165_646_600_546e-10,
        -3.782_402_249_647_025e-9,
        4.105_056_314_784_282e-9,
        9.954_068_043_041_497e-8,
        -9.926_774_779_510_433e-7,
        5.584_478_207_295_911e-6,
        -2.195_153_685_991_408_2e-5,
        6.141_957_956_395_826e-5,
        -0.000_107_693_250_822_801_58,
        2.143_010_020_340_575_7e-5,
        0.000_548_649_287_496_970_3,
        -0.001_667_450_755_600_342,
        0.000_193_773_973_912_611_2,
        0.019_134_616_425_455_487,
        -0.102_774_336_114_110_69,
        -0.636_619_467_685_247_9,
        -1.128_379_192_317_515_3
    ]
);

/// An activation or the backward form of one.
pub trait Act: Copy + Send + Sync + 'static {
    /// True if there is an incoming gradient to read.
    const BACKWARD: bool;
    /// What computing an element takes beyond reading and writing it: so many bytes could be moved meanwhile.
    const WORK: usize = 0;
    /// The expression: the argument (or forward result), the incoming gradient (the argument again in forward forms), the
    /// attribute alpha.
    fn apply<S: Style, R: Wide>(x: R, g: R, alpha: R) -> R;
}

/// y = f(x, g); all of one length.
struct Map<'a, A, R> {
    x: &'a [R],
    g: &'a [R],
    y: &'a mut [R],
    alpha: R,
    f: std::marker::PhantomData<A>,
}

impl<A: Act, R: Wide> Job for Map<'_, A, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        match (S::TEXTBOOK, A::BACKWARD) {
            (false, true) => both!(self.x, self.g, self.y, |x, g| A::apply::<S, R>(x, g, self.alpha)),
            (false, false) => each!(self.x, self.y, |x| A::apply::<S, R>(x, x, self.alpha)),
            (true, true) => {
                for ((y, x), g) in self.y.iter_mut().zip(self.x).zip(self.g) {
                    *y = A::apply::<S, R>(*x, *g, self.alpha);
                }
            }
            (true, false) => {
                for (y, x) in self.y.iter_mut().zip(self.x) {
                    *y = A::apply::<S, R>(*x, *x, self.alpha);
                }
            }
        }
    }
}

/// A loop over one type: context, x, g, y, alpha.
type Loop<R> = fn(&CpuCtx<'_>, &[R], &[R], &mut [R], R);

fn fast<A: Act, R: Wide>(ctx: &CpuCtx<'_>, x: &[R], g: &[R], y: &mut [R], alpha: R) {
    dispatch(ctx.isa, Map { x, g, y, alpha, f: std::marker::PhantomData::<A> });
}

fn textbook<A: Act, R: Wide>(_: &CpuCtx<'_>, x: &[R], g: &[R], y: &mut [R], alpha: R) {
    Map { x, g, y, alpha, f: std::marker::PhantomData::<A> }.run::<Textbook>();
}

/// y = f(x), or dx = f(g, x) with g as the first input. Params: n, alpha. Dtypes: the floats; f16 and bf16 are converted
/// in blocks and computed in f32.
pub fn activation<A: Act>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    drive(ctx, args, call, (A::BACKWARD, A::WORK), fast::<A, f32>, fast::<A, f64>)
}

/// The same as a textbook would write it: one thread, scalar library functions.
pub fn activation_naive<A: Act>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = ctx.alone();
    drive(&one, args, call, (A::BACKWARD, A::WORK), textbook::<A, f32>, textbook::<A, f64>)
}

fn drive(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    (backward, work): (bool, usize),
    f32s: Loop<f32>,
    f64s: Loop<f64>,
) -> Result<()> {
    let (n, alpha) = (call.size(0), call.scalar(1));
    let parts = ctx.parts_for_bytes(n * ((2 + usize::from(backward)) * call.dtype.size() as usize + work));
    let chunk = CpuCtx::chunk(n, parts, 1024);
    match call.dtype {
        DType::F32 => whole(ctx, args, (n, chunk), backward, f32s, alpha as f32),
        DType::F64 => whole(ctx, args, (n, chunk), backward, f64s, alpha),
        DType::F16 => through_f32::<half::f16>(ctx, args, (n, chunk), backward, f32s, alpha as f32),
        DType::BF16 => through_f32::<half::bf16>(ctx, args, (n, chunk), backward, f32s, alpha as f32),
        _ => Err(call.no_dtype()),
    }
}

fn whole<R: Wide>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    (n, chunk): (usize, usize),
    backward: bool,
    f: Loop<R>,
    alpha: R,
) -> Result<()> {
    let g = args.input::<R>(0, n)?;
    let x = args.input::<R>(usize::from(backward), n)?;
    let y = args.output::<R>(0, n)?;
    ctx.split(y, chunk, |at, y| {
        let range = at..at + y.len();
        f(ctx, &x[range.clone()], &g[range], y, alpha);
    });
    Ok(())
}

fn through_f32<H>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    (n, chunk): (usize, usize),
    backward: bool,
    f: Loop<f32>,
    alpha: f32,
) -> Result<()>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    const BLOCK: usize = 1024;
    let g = args.input::<H>(0, n)?;
    let x = args.input::<H>(usize::from(backward), n)?;
    let y = args.output::<H>(0, n)?;
    ctx.split(y, chunk, |at, y| {
        let (mut wide_x, mut wide_g, mut done) = ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
        for (i, y) in y.chunks_mut(BLOCK).enumerate() {
            let from = at + i * BLOCK;
            let range = from..from + y.len();
            let (wide_x, wide_g, done) = (&mut wide_x[..y.len()], &mut wide_g[..y.len()], &mut done[..y.len()]);
            x[range.clone()].convert_to_f32_slice(wide_x);
            if backward {
                g[range].convert_to_f32_slice(wide_g);
            }
            f(ctx, wide_x, wide_g, done, alpha);
            y.convert_from_f32_slice(done);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exact::{Exact, ulp};
    use crate::base::exact_erf::{sqrt_2, sqrt_2_over_pi};
    use crate::base::rng::Philox;
    use crate::kernel::cpu::simd::{Fused, Plain};

    fn worst<R: Wide>(dtype: DType, f: fn(R) -> R) -> (f64, f64) {
        worst_of(dtype, f, Exact::erf)
    }

    fn worst_of<R: Wide>(dtype: DType, f: fn(R) -> R, exact: impl Fn(Exact) -> Exact) -> (f64, f64) {
        let rng = Philox::new(17);
        (0..30_000u64)
            .map(|i| {
                let range = [6.5, 1.0, 0.03, 4.2, 1e-6][(i % 5) as usize];
                let x = R::of((rng.unit(0, i) * 2.0 - 1.0) * range);
                let want = exact(Exact::f(x.to_f64()));
                let err = Exact::f(f(x).to_f64()).add(want.neg()).abs_f64();
                (err / ulp(dtype, want.to_f64()), x.to_f64())
            })
            .fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
    }

    #[test]
    fn erf_stays_below_two_ulps() {
        for (name, (error, at)) in [
            ("f32", worst::<f32>(DType::F32, Wide::erf::<Plain>)),
            ("f64", worst::<f64>(DType::F64, Wide::erf::<Plain>)),
            ("f32 fused", worst::<f32>(DType::F32, Wide::erf::<Fused>)),
            ("f64 fused", worst::<f64>(DType::F64, Wide::erf::<Fused>)),
            ("f32 textbook", worst::<f32>(DType::F32, Wide::erf::<Textbook>)),
            ("f64 textbook", worst::<f64>(DType::F64, Wide::erf::<Textbook>)),
        ] {
            assert!(error < 2.0, "{name}: {error} ulp at {at}");
        }
    }

    #[test]
    fn both_gelus_keep_their_limits() {
        let one = Exact::f(1.0);
        let gelu = |x: Exact| Exact::f(0.5).mul(x).mul(one.add(x.div(sqrt_2()).erf()));
        let by_tanh = |x: Exact| {
            let twice = sqrt_2_over_pi().mul(x.add(Exact::f(0.044_715).mul(x).mul(x).mul(x))).mul(Exact::f(-2.0));
            x.div(one.add(twice.exp()))
        };
        let erf = |f: fn(f32) -> f32| worst_of(DType::F32, f, gelu);
        let tanh = |f: fn(f32) -> f32| worst_of(DType::F32, f, by_tanh);
        for (name, (error, at), limit) in [
            ("gelu", erf(Wide::gelu::<Plain>), 1.0),
            ("gelu fused", erf(Wide::gelu::<Fused>), 2.0),
            ("gelu_tanh", tanh(Wide::gelu_tanh::<Plain>), 1.0),
            ("gelu_tanh fused", tanh(Wide::gelu_tanh::<Fused>), 1.0),
        ] {
            assert!(error < limit, "{name}: {error} ulp at {at}");
        }
        // The textbook's digits cancel, which is seen.
        assert!(erf(Wide::gelu::<Textbook>).0 > 100.0 && tanh(Wide::gelu_tanh::<Textbook>).0 > 2.0);
    }

    #[test]
    fn special_values_of_both_gelus() {
        for f in [Wide::gelu::<Plain>, Wide::gelu::<Fused>, Wide::gelu_tanh::<Plain>, Wide::gelu_tanh::<Fused>] {
            let f: fn(f32) -> f32 = f;
            assert!(f(f32::NAN).is_nan());
            for (x, want) in [(0.0, 0.0), (f32::INFINITY, f32::INFINITY), (f32::MAX, f32::MAX), (50.0, 50.0)] {
                assert_eq!(f(x).to_bits(), f32::to_bits(want), "{x}");
                assert_eq!(f(-x).to_bits(), (-0.0f32).to_bits(), "-{x}");
            }
        }
    }

    #[test]
    fn special_values_of_erf() {
        let e = Wide::erf::<Plain>;
        assert_eq!((e(f32::INFINITY), e(f32::NEG_INFINITY), e(40.0f32)), (1.0, -1.0, 1.0));
        assert!(e(f32::NAN).is_nan());
        assert_eq!(e(-0.0f32).to_bits(), (-0.0f32).to_bits());
        assert_eq!(Wide::erf::<Plain>(1e-310f64), 1e-310 * std::f64::consts::FRAC_2_SQRT_PI);
        assert!(f64::NAN.clamped(3.0).is_nan() && 9.0f64.clamped(3.0) == 3.0 && (-9.0f32).clamped(3.0) == -3.0);
    }
}
