//! Tests of the bounds: by hand where a number can be had by hand, and all rules on a table that must not change unseen.

use super::*;
use crate::base::Attrs;

fn case(dtype: DType, fill: Fill) -> Case {
    Case { op: "t", dtype, dims: vec![("n", 10)], attrs: Attrs::new(), fill }
}

fn bound(t: Tolerance, lang: Lang, dtype: DType) -> Bound {
    t.bound(&case(dtype, Fill::Uniform), lang, dtype).unwrap()
}

fn ok(b: &Bound, got: f64, want: f64, scale: f64) -> bool {
    b.judge(Exact::f(got), Exact::f(want), scale).ok
}

const GAMMA: Tolerance = Tolerance::Gamma(|_| 9);

#[test]
fn functions_get_their_published_limit() {
    let t = Tolerance::Function("exp");
    assert_eq!(bound(t, Lang::OpenclC, DType::F32).allowed(1.0, 5.0), 3.0 * 2f64.powi(-23));
    assert_eq!(bound(t, Lang::Wgsl, DType::F32).allowed(1.0, 5.0), 14.0 * 2f64.powi(-23));
    let c = case(DType::F64, Fill::Uniform);
    assert!(t.bound(&c, Lang::Wgsl, DType::F64).is_none(), "WGSL publishes no f64 exp");
}

/// Values that an H200 gave, within what is published as it is counted there; one ulp more is not.
#[test]
fn limits_are_counted_from_where_their_publishers_count() {
    let tanh = bound(Tolerance::Function("tanh"), Lang::Cuda, DType::F64);
    let ulp = 2f64.powi(-53);
    assert_eq!(tanh.allowed(0.587, 0.6), 1.5 * ulp);
    assert!(1.53e-16 <= tanh.allowed(0.587_447_943_210_260_7, 0.7) && 1.53e-16 + ulp > tanh.allowed(0.587, 0.7));
    let log = bound(Tolerance::Function("log"), Lang::Wgsl, DType::F32);
    let (got, want) = (-0.915_761_8_f32, -0.915_762_015);
    assert!(ok(&log, f64::from(got), want, 0.4));
    let next = f64::from(f32::from_bits(got.to_bits() - 1));
    assert!(next > f64::from(got) && !ok(&log, next, want, 0.4), "{next}");
    let divide = bound(Tolerance::Function("divide"), Lang::Cuda, DType::F32);
    assert_eq!(divide.allowed(1.0, 1.0), 0.5 * 2f64.powi(-23));
}

#[test]
fn an_infinite_argument_does_not_widen_the_bound() {
    let b = bound(Tolerance::Function("exp"), Lang::OpenclC, DType::F32);
    assert!(ok(&b, 0.0, 0.0, f64::INFINITY) && !ok(&b, 1e-30, 0.0, f64::INFINITY));
    let w = bound(Tolerance::Function("exp"), Lang::Wgsl, DType::F32);
    assert!(w.allowed(0.0, 3e38) < 1e-42);
}

#[test]
fn two_ulps_in_f64_are_caught_where_the_limit_is_less() {
    let b = bound(Tolerance::Function("exp"), Lang::Native, DType::F64);
    assert!(b.allowed(1.0, 1.0) < 2.0 * f64::EPSILON);
}

#[test]
fn integers_and_moves_have_no_slack() {
    let b = bound(Tolerance::Rounded, Lang::Cuda, DType::I32);
    assert!(b.judge(Exact::I(7), Exact::I(7), 1e9).ok && !b.judge(Exact::I(7), Exact::I(8), 1e9).ok);
    let b = bound(Tolerance::Exact, Lang::Wgsl, DType::F32);
    assert!(ok(&b, 1e-40, 1e-40, 1.0) && !ok(&b, 0.0, 1e-40, 1.0) && !ok(&b, 0.0, -0.0, 0.0));
}

#[test]
fn relu_on_wgsl_may_see_a_subnormal_as_zero() {
    let tiny = -1e-40;
    assert!(ok(&bound(Tolerance::Selected, Lang::Wgsl, DType::F32), tiny, 0.0, 1e-40));
    assert!(!ok(&bound(Tolerance::Selected, Lang::OpenclC, DType::F32), tiny, 0.0, 1e-40));
    assert!(!ok(&bound(Tolerance::Selected, Lang::Wgsl, DType::F32), 1e-37, 0.0, 1.0));
}

#[test]
fn storage_rounds_once_more() {
    let a = bound(Tolerance::Function("exp"), Lang::OpenclC, DType::F16).allowed(1.0, 0.0);
    assert!(a > 0.5 * 2f64.powi(-10) && a < 0.51 * 2f64.powi(-10), "{a}");
}

#[test]
fn flushing_is_allowed_only_where_the_language_says_so() {
    for t in [Tolerance::Rounded, Tolerance::Function("exp"), GAMMA] {
        assert!(ok(&bound(t, Lang::Wgsl, DType::F32), 0.0, 1e-40, 1e-40), "{t:?}");
        assert!(!ok(&bound(t, Lang::OpenclC, DType::F32), 0.0, 1e-40, 1e-40), "{t:?}");
    }
}

/// e^x / (1 + e^x) has subnormal intermediates, and no others: e^-100 in f32, e^-10 where f16 is stored.
#[test]
fn a_small_sigmoid_is_neither_zero_nor_twice_as_large() {
    let sigmoid = Tolerance::Around { function: "exp", extra_ulps: 1.0 };
    let exact = |x: f64| x.exp() / (1.0 + x.exp());
    for (dtype, x, near) in [
        (DType::F32, -100.0, f64::from(exact(-100.0) as f32)),
        (DType::F16, -10.0, half::f16::from_f64(exact(-10.0)).to_f64()),
        (DType::F64, -740.0, exact(-740.0)),
    ] {
        for lang in [Lang::OpenclC, Lang::Cuda, Lang::Native] {
            let (b, want, scale) = (bound(sigmoid, lang, dtype), exact(x), x.abs());
            assert!(ok(&b, near, want, scale), "{lang:?} {dtype}: {:e}", b.allowed(want, scale));
            for wrong in [0.0, 2.0 * want, 0.7 * want] {
                assert!(!ok(&b, wrong, want, scale), "{lang:?} {dtype}: {wrong:e} for {want:e}");
            }
        }
    }
    // Of the smallest numbers an exponential may be off by its whole limit.
    let b = bound(sigmoid, Lang::OpenclC, DType::F32);
    let tiny = 2f64.powi(-149);
    assert!(ok(&b, 26.0 * tiny, exact(-100.0), 100.0) && ok(&b, 0.0, 2.0 * tiny, 102.5));
    assert!(ok(&bound(sigmoid, Lang::Wgsl, DType::F32), 0.0, exact(-100.0), 100.0), "WGSL may flush");
}

#[test]
fn the_largest_number_is_no_infinity() {
    let inf = f64::INFINITY;
    for (dtype, max, half) in [
        (DType::F32, f64::from(f32::MAX), 2f64.powi(103)),
        (DType::F16, 65_504.0, 16.0),
        (DType::F64, f64::MAX, f64::NAN),
    ] {
        let b = bound(Tolerance::Rounded, Lang::Native, dtype);
        let w = bound(Tolerance::Rounded, Lang::Wgsl, dtype);
        assert!(ok(&b, max, max, max) && !ok(&b, inf, max, max) && !ok(&b, -inf, -max, max), "{dtype}");
        assert!(ok(&w, max, max, max) && !ok(&w, inf, max, max), "{dtype}: WGSL rounds nothing that it holds");
        if half.is_finite() {
            // Below half an ulp beyond it the largest number is the nearest one, from there on the infinity.
            assert!(ok(&b, max, max + 0.99 * half, max) && !ok(&b, inf, max + 0.99 * half, max), "{dtype}");
            assert!(ok(&b, inf, max + half, max) && ok(&b, -inf, -max - half, max), "{dtype}");
            assert!(ok(&w, inf, max + 0.01 * half, max) && ok(&w, max, max + 0.01 * half, max), "{dtype}");
        }
    }
}

#[test]
fn the_nearest_number_is_wanted_also_at_powers_of_two() {
    let b = bound(Tolerance::Rounded, Lang::Native, DType::F32);
    let below = f64::from(1.0f32.next_down());
    assert!(ok(&b, 1.0, 1.0, 1.0) && !ok(&b, below, 1.0, 1.0) && !ok(&b, 1.0 + 2f64.powi(-23), 1.0, 1.0));
    let third = 1.0 / 3.0;
    assert!(ok(&b, f64::from(third as f32), third, 1.0));
    assert!(!ok(&b, f64::from((third as f32).next_down()), third, 1.0) && !ok(&b, 0.0, third, 1.0));
    // WGSL: either side, but nothing else, and an exact value only as it is.
    let w = bound(Tolerance::Rounded, Lang::Wgsl, DType::F32);
    let near = third as f32;
    assert!(ok(&w, f64::from(near), third, 1.0) && ok(&w, f64::from(near.next_down()), third, 1.0));
    assert!(!ok(&w, f64::from(near.next_up()), third, 1.0) && !ok(&w, below, 1.0, 1.0));
}

#[test]
fn nan_and_infinities_must_match() {
    let (inf, nan, max) = (f64::INFINITY, f64::NAN, f64::from(f32::MAX));
    let b = bound(Tolerance::Rounded, Lang::Native, DType::F32);
    assert!(ok(&b, nan, nan, nan) && ok(&b, inf, inf, inf) && ok(&b, inf, 2.0 * max, 2.0 * max));
    for (got, want) in
        [(1.0, nan), (nan, 1.0), (nan, inf), (-inf, inf), (inf, 1.0), (max, 2.0 * max), (-inf, 2.0 * max)]
    {
        assert!(!ok(&b, got, want, 1.0), "{got} for {want}");
    }
    let w = bound(Tolerance::Rounded, Lang::Wgsl, DType::F32);
    let j = w.judge(Exact::f(3.0), Exact::f(nan), nan);
    assert!(j.ok && j.undefined, "WGSL leaves NaN open, which is told apart");
    assert!(!ok(&w, nan, 1.0, 1.0), "NaN from finite values is wrong everywhere");
}

#[test]
fn partial_sums_may_overflow_only_where_the_terms_are_that_large() {
    let (inf, max) = (f64::INFINITY, f64::from(f32::MAX));
    let b = bound(GAMMA, Lang::Native, DType::F32);
    for got in [max, inf, -inf, f64::NAN] {
        assert!(ok(&b, got, max, 3.0 * max), "{got}");
    }
    assert!(!ok(&b, 0.0, max, 3.0 * max), "another finite value stays wrong");
    assert!(!ok(&b, inf, max / 4.0, max / 2.0) && !ok(&b, f64::NAN, 1.0, 2.0));
    assert!(!ok(&b, f64::NAN, inf, 1.0), "an infinite term without overflow gives that infinity");
}

#[test]
fn integer_data_leave_no_slack() {
    let t = GAMMA.bound(&case(DType::F32, Fill::Integer), Lang::OpenclC, DType::F32).unwrap();
    assert!(ok(&t, 100.0, 100.0, 1000.0) && !ok(&t, f64::from(100f32.next_up()), 100.0, 1000.0));
    assert!(t.allowed(100.0, 1e9) > 0.0, "beyond 2^24 sums round");
    let half = GAMMA.bound(&case(DType::F16, Fill::Integer), Lang::OpenclC, DType::F16).unwrap();
    assert!(ok(&half, 2048.0, 2049.0, 3000.0) && !ok(&half, 2046.0, 2049.0, 3000.0));
}

/// 2^-23 and 2^-24: the spacing of f32 at 1, and its unit roundoff.
const EPS: f64 = 1.0 / 8_388_608.0;
const U: f64 = EPS / 2.0;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn sums_by_hand() {
    // Nine roundings of terms that add up to 5, the last rounding at 3 (spacing 2^-22), and nine underflows.
    let g = 9.0 * U / (1.0 - 9.0 * U);
    assert!(near(gamma(9, U), g) && gamma(1 << 24, U).is_infinite() && gamma(0, U) == 0.0);
    let b = bound(GAMMA, Lang::OpenclC, DType::F32);
    assert!(near(b.allowed(3.0, 5.0), 5.0 * g + 0.5 * 2.0 * EPS));
    assert!(near(b.allowed(0.0, 0.0), 9.0 * 2.0 * 2f64.powi(-149) + 0.5 * 2f64.powi(-149)));
    // WGSL rounds to either neighbour and flushes.
    let w = bound(GAMMA, Lang::Wgsl, DType::F32);
    let g2 = 9.0 * EPS / (1.0 - 9.0 * EPS);
    assert!(near(w.allowed(3.0, 5.0), 5.0 * g2 + 2.0 * EPS + 18.0 * 2f64.powi(-126)));
    // A mean divides once more: half an ulp, and the sum's error grows by that.
    let m = bound(Tolerance::Mean(|_| 9), Lang::Native, DType::F32);
    assert!(near(m.allowed(3.0, 5.0), 5.0 * g * (1.0 + 2.0 * U) + 0.5 * 2.0 * EPS + 2.0 * 2f64.powi(-149)));
    let whole = |t: Tolerance| t.bound(&case(DType::F32, Fill::Integer), Lang::Native, DType::F32).unwrap();
    // Whole numbers: nothing, and a mean its division; both only while 2^24 holds the sums.
    assert_eq!(whole(GAMMA).allowed(3.0, 16_777_216.0), 0.0);
    assert!(whole(GAMMA).allowed(3.0, 16_777_217.0) > 9.0);
    assert!(whole(GAMMA).exact_below(16_777_216.0) && !whole(GAMMA).exact_below(16_777_217.0));
    assert!(!bound(GAMMA, Lang::Native, DType::F32).exact_below(1.0));
    let half = GAMMA.bound(&case(DType::F16, Fill::Integer), Lang::Native, DType::F16).unwrap();
    assert!(!half.exact_below(1.0), "f16 does not hold what f32 sums");
    let mean = whole(Tolerance::Mean(|_| 9));
    assert!(near(mean.allowed(3.0, 1_864_135.0), EPS) && mean.allowed(3.0, 1_864_136.0) > 0.1);
}

#[test]
fn formulas_by_hand() {
    const LIST: &[(&str, f64)] = &[("exp", 2.0), ("erf", 0.5)];
    let f = bound(Tolerance::Formula { functions: LIST, roundings: 3.0 }, Lang::OpenclC, DType::F32);
    let r = (2.0 * 3.0 + 0.5 * 16.0) * EPS + 3.0 * U;
    let want = r * (1.0 + 4.0 * r) * 7.0 + 0.5 * EPS + 4.0 * 2f64.powi(-149);
    assert!(near(f.allowed(1.0, 7.0), want), "{:e} {want:e}", f.allowed(1.0, 7.0));
    let a = bound(Tolerance::Analysis { functions: LIST, roundings: |_| 12 }, Lang::OpenclC, DType::F32);
    let r = (2.0 * 3.0 + 0.5 * 16.0) * EPS + gamma(12, U);
    let want = r / (1.0 - r) * 7.0 + 0.5 * EPS + 13.0 * 2f64.powi(-149);
    assert!(near(a.allowed(1.0, 7.0), want));
    let s = bound(Tolerance::Softmax(|_| 10), Lang::OpenclC, DType::F32);
    let first = 4.0 * U * 3.0 + gamma(10, U);
    let want = 2.5 * EPS * 0.5 + (first / (1.0 - first) + U * 1.01 * 6.0) * 0.5 + 4.0 * 2f64.powi(-149);
    assert!(near(s.allowed(0.5, 6.0), want), "{:e} {want:e}", s.allowed(0.5, 6.0));
    // exp's argument counts up to where exp is 0 or infinite: half the smallest subnormal, 2^-150.
    let w = bound(Tolerance::Function("exp"), Lang::Wgsl, DType::F32);
    assert!(near(w.allowed(1.0, 1e6), (4.0 + 2.0 * 150.0 * std::f64::consts::LN_2) * EPS));
    let around = bound(Tolerance::Around { function: "exp", extra_ulps: 1.5 }, Lang::OpenclC, DType::F32);
    assert!(near(around.allowed(1.0, 9.0), 3.0 * EPS + (2.5 + 1.5) * EPS));
    assert!(near(around.allowed(0.0, 200.0), (3.0 + 2.5 + 1.5) * 2f64.powi(-149)));
}

#[test]
fn curves_by_hand() {
    let log = bound(Tolerance::Function("log"), Lang::Wgsl, DType::F32);
    assert!(near(log.allowed(0.5, 2.0), 2f64.powi(-21)) && near(log.allowed(1.5, 2.001), 4.0 * EPS));
    assert!(near(log.allowed(0.5, 0.5), 2f64.powi(-21)) && near(log.allowed(0.7, 0.499), 4.0 * EPS / 2.0));
    let tan = bound(Tolerance::Function("tan"), Lang::Wgsl, DType::F32);
    let (d, c) = (2f64.powi(-11), 0.8);
    assert!(near(tan.allowed(0.75, 0.6), d * 1.75 / (c - d) + 5.0 * EPS / 2.0));
    assert!(tan.allowed(1025.0, 1.0).is_infinite() && tan.allowed(1000.0, 1.0).is_finite());
    let j = tan.judge(Exact::f(9.0), Exact::f(0.5), 4.0);
    assert!(j.ok && j.undefined, "no limit is published beyond pi");
    assert!(!tan.judge(Exact::f(9.0), Exact::f(0.5), 3.0).ok);
    let exact = tan.judge(Exact::f(0.5), Exact::f(0.5), 4.0);
    assert!(exact.ok && !exact.undefined, "an exact result needs no limit");
}

#[test]
fn only_whole_factors_keep_sums_whole() {
    let with = |alpha: f64| {
        let mut c = case(DType::F32, Fill::Integer);
        c.attrs = Attrs::new().with("alpha", Attr::Float(alpha));
        GAMMA.bound(&c, Lang::Native, DType::F32).unwrap().allowed(3.0, 100.0)
    };
    assert_eq!((with(2.0), with(-3.0)), (0.0, 0.0));
    assert!(with(0.5) > 0.0 && with(1e-3) > 0.0);
    // Integers: the error itself, and scaled by the value or by 1.
    let b = bound(Tolerance::Exact, Lang::Native, DType::I32);
    let j = b.judge(Exact::I(7), Exact::I(-4), 1.0);
    assert_eq!((j.ok, j.error, j.scaled), (false, Some(11.0), Some(2.75)));
    assert_eq!(b.judge(Exact::I(7), Exact::I(0), 1.0).scaled, Some(7.0));
}

#[test]
fn the_first_wrong_element_is_named() {
    let b = bound(Tolerance::Rounded, Lang::Native, DType::F32);
    let got = HostTensor::from_slice(&[1.0f32, 2.0, 3.5, 9.0], &[4]).unwrap();
    let of = |values: &[f64]| crate::op::Reference {
        values: values.iter().map(|v| Exact::f(*v)).collect(),
        scale: values.to_vec(),
    };
    assert_eq!(b.first_wrong(&of(&[1.0, 2.0, 3.5, 9.0]), &got), None);
    let why = b.first_wrong(&of(&[1.0, 2.0, 3.0, 4.0]), &got).unwrap();
    assert!(why.starts_with("element 2 is 3.5e0, expected 3e0 within"), "{why}");
    assert!(b.first_wrong(&of(&[1.0, 2.0]), &got).unwrap().contains("the oracle has 2"));
    let mut short = of(&[1.0, 2.0, 3.5, 9.0]);
    short.scale.pop();
    assert!(b.first_wrong(&short, &got).is_some());
    assert_eq!(
        [DType::F32, DType::F64, DType::BF16].map(|d| bound(Tolerance::Exact, Lang::Native, d).strict()),
        [Some(1e-6), Some(1e-12), None]
    );
}

const FUNCTIONS: &[(&str, f64)] = &[("exp", 1.5), ("divide", 2.0)];
const ROOTS: &[(&str, f64)] = &[("sqrt", 0.5)];

/// Every rule in one line per language and dtype: for some exact values and scales the allowed error, and how results are
/// judged that are exact, just within it, just beyond it, far off, of the other sign, zero, infinite and NaN.
fn table() -> String {
    let rules: &[(&str, Tolerance)] = &[
        ("exact", Tolerance::Exact),
        ("selected", Tolerance::Selected),
        ("rounded", Tolerance::Rounded),
        ("exp", Tolerance::Function("exp")),
        ("tanh", Tolerance::Function("tanh")),
        ("log", Tolerance::Function("log")),
        ("sin", Tolerance::Function("sin")),
        ("tan", Tolerance::Function("tan")),
        ("pow", Tolerance::Function("pow")),
        ("around", Tolerance::Around { function: "exp", extra_ulps: 1.5 }),
        ("gamma", GAMMA),
        ("mean", Tolerance::Mean(|_| 9)),
        ("softmax", Tolerance::Softmax(|_| 10)),
        ("formula", Tolerance::Formula { functions: FUNCTIONS, roundings: 3.0 }),
        ("absolute", Tolerance::Formula { functions: &[("tanh", 1.5)], roundings: 3.0 }),
        ("analysis", Tolerance::Analysis { functions: ROOTS, roundings: |_| 12 }),
        ("exponential", Tolerance::Analysis { functions: FUNCTIONS, roundings: |_| 12 }),
        ("output", Tolerance::PerOutput(&[Tolerance::Rounded, Tolerance::Exact])),
    ];
    let max = f64::from(f32::MAX);
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let probes = [
        (1.0, 1.0),
        (-3.0, 5.0),
        (0.0, 0.0),
        (1e-40, 1e-40),
        (1e-20, 2.0),
        (max, 4.0 * max),
        (1e39, 1e39),
        (inf, inf),
        (nan, 1.0),
    ];
    let mut out = String::new();
    for (name, rule) in rules {
        for lang in [Lang::OpenclC, Lang::Wgsl] {
            for (dtype, fill) in [
                (DType::F32, Fill::Uniform),
                (DType::F16, Fill::Uniform),
                (DType::F64, Fill::Uniform),
                (DType::F32, Fill::Integer),
            ] {
                let few = matches!(rule, Tolerance::Gamma(_) | Tolerance::Mean(_));
                if fill == Fill::Integer && !few
                    || dtype != DType::F32 && !(few || *name == "rounded" || *name == "exp")
                {
                    continue;
                }
                let Some(b) = rule.bound(&case(dtype, fill), lang, dtype) else { continue };
                out.push_str(&format!("{name} {lang:?} {dtype} {fill}: {}\n", b.words));
                for (want, scale) in probes {
                    let e = b.allowed(want, scale);
                    let (inside, beyond) = (want + 0.999 * e, want + 1.01 * e);
                    let results =
                        [want, inside, beyond, want * 3.0 + 1.0, -want, 0.0, max, -max, inf, -inf, nan, 65_504.0];
                    let judged = results.map(|got| b.judge(Exact::f(got), Exact::f(want), scale));
                    let marks: String = judged
                        .iter()
                        .map(|j| match j {
                            j if j.undefined => 'u',
                            j if j.ok => 'o',
                            _ => '-',
                        })
                        .collect();
                    let scaled = judged[3].scaled.map_or("none".to_string(), |s| format!("{s:.3e}"));
                    out.push_str(&format!("  {want:e} of {scale:e}: {e:.6e} {marks} {scaled}\n"));
                }
            }
        }
    }
    out
}

#[test]
fn every_rule_stays_as_it_is() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bounds.txt");
    let now = table();
    if std::env::var_os("GPUCTL_RENEW_BOUNDS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let then = std::fs::read_to_string(&path).unwrap();
    let different = then.lines().zip(now.lines()).find(|(a, b)| a != b);
    assert_eq!(different, None, "a bound has changed; if that is meant, GPUCTL_RENEW_BOUNDS=1 writes the table anew");
    assert_eq!(then.lines().count(), now.lines().count());
}
