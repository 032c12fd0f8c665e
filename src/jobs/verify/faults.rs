//! The faults of the self-test. Those that a real library had name it in the comment (requirements A9 and B6).

use crate::base::{Case, HostTensor, Lang};

use super::Detector;
use super::self_test::{Change, Expect, Fault, Planted};

use Detector::{Bits, Bound, Class, Guards, Repeat, Unwritten, Whole};

/// Changes all elements of a result as numbers of one type.
pub(super) fn each<T: bytemuck::Pod>(f: impl Fn(&mut [T], u64) + Send + Sync + 'static) -> Change {
    Box::new(move |bytes, reads| {
        let mut v: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
        f(&mut v, reads);
        bytes.copy_from_slice(bytemuck::cast_slice(&v));
    })
}

pub(super) fn numbers<T: bytemuck::Pod>(inputs: &[HostTensor], i: usize) -> Vec<T> {
    inputs.get(i).map(|t| bytemuck::pod_collect_to_vec(t.bytes())).unwrap_or_default()
}

pub(super) fn size(c: &Case, name: &str) -> usize {
    c.dim(name) as usize
}

pub(super) const fn caught(
    name: &'static str,
    case: &'static str,
    by: Detector,
    make: fn(&Case, &[HostTensor]) -> Change,
) -> Planted {
    Planted { name, case, expect: Expect::Caught(by), fault: Fault::Results(make) }
}

const fn allowed(
    name: &'static str,
    case: &'static str,
    why: &'static str,
    make: fn(&Case, &[HostTensor]) -> Change,
) -> Planted {
    Planted { name, case, expect: Expect::Allowed(why), fault: Fault::Results(make) }
}

const fn around(name: &'static str, distance: i64) -> Planted {
    Planted { name, case: "add/f32/n257/-/uniform", expect: Expect::Caught(Guards), fault: Fault::Around(distance) }
}

const fn text(
    name: &'static str,
    case: &'static str,
    by: Detector,
    lang: Lang,
    from: &'static str,
    to: &'static str,
) -> Planted {
    Planted { name, case, expect: Expect::Caught(by), fault: Fault::Text { lang, from, to, race: false } }
}

const fn race(
    name: &'static str,
    case: &'static str,
    by: Detector,
    lang: Lang,
    from: &'static str,
    to: &'static str,
) -> Planted {
    Planted { name, case, expect: Expect::Caught(by), fault: Fault::Text { lang, from, to, race: true } }
}

use Lang::{OpenclC, Wgsl};

/// All faults.
pub(super) fn all() -> impl Iterator<Item = &'static Planted> {
    FAULTS.iter().chain(super::faults_ops::OF_OPS)
}

/// Faults of every kind; those of single ops lie in `faults_ops`.
static FAULTS: &[Planted] = &[
    // Small errors, where the limit is smaller.
    caught("one-ulp-f32", "add/f32/n257/-/uniform", Bound, |_, _| each::<f32>(|v, _| v[200] = v[200].next_up())),
    caught("ten-ulp-f32", "exp/f32/n1025/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| v[1024] = f32::from_bits(v[1024].to_bits() + 10))
    }),
    caught("two-ulp-f64-function", "exp/f64/n257/-/uniform", Bound, |_, _| {
        each::<f64>(|v, _| v.iter_mut().for_each(|x| *x = x.next_up().next_up()))
    }),
    caught("two-ulp-f64-product", "gemm/f64/m31,n29,k37/-/integer", Bits, |_, _| {
        each::<f64>(|v, _| v[17] = f64::from_bits(v[17].to_bits() + 2))
    }),
    // f64 computed in f32 without a word; TF32-like inputs; half precision in between.
    caught("f64-through-f32", "exp/f64/n257/-/uniform", Bound, |_, _| {
        each::<f64>(|v, _| v.iter_mut().for_each(|x| *x = f64::from(*x as f32)))
    }),
    caught("product-of-short-factors", "gemm/f32/m17,n33,k65/-/uniform", Bound, |c, inputs| {
        let (m, n, k) = (size(c, "m"), size(c, "n"), size(c, "k"));
        // 10 bits of significand, as tensor cores keep for TF32.
        let cut = |x: &f32| f32::from_bits((x.to_bits() + 0x1000) & !0x1FFF);
        let a: Vec<f32> = numbers::<f32>(inputs, 0).iter().map(cut).collect();
        let b: Vec<f32> = numbers::<f32>(inputs, 1).iter().map(cut).collect();
        each::<f32>(move |v, _| {
            for (at, y) in v.iter_mut().enumerate().take(m * n) {
                *y = (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]).sum();
            }
        })
    }),
    caught("half-precision-sum", "sum/f32/outer33,n65,inner1/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| v.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32()))
    }),
    caught("storage-rounded-towards-zero", "exp/f16/n1025/-/uniform", Bound, |_, inputs| {
        let x: Vec<half::f16> = numbers(inputs, 0);
        each::<half::f16>(move |v, _| {
            for (y, x) in v.iter_mut().zip(&x) {
                let exact = x.to_f64().exp();
                let near = half::f16::from_f64(exact);
                *y = if near.to_f64() > exact { half::f16::from_bits(near.to_bits() - 1) } else { near };
            }
        })
    }),
    caught("two-percent-off", "tanh/f32/n257/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| v.iter_mut().for_each(|x| *x *= 1.02))
    }),
    // Special values.
    caught("flushed-subnormal", "exp/f32/n1000/-/special", Bound, |_, _| {
        each::<f32>(|v, _| v.iter_mut().filter(|x| x.is_subnormal()).for_each(|x| *x = 0.0))
    }),
    caught("nan-in-one-element", "softmax/f32/m7,n33/-/uniform", Class, |_, _| each::<f32>(|v, _| v[40] = f32::NAN)),
    caught("infinity-saturates", "exp/f32/n1000/-/special", Class, |_, _| {
        each::<f32>(|v, _| v.iter_mut().filter(|x| x.is_infinite()).for_each(|x| *x = f32::MAX))
    }),
    // Finite-math-only: a ReLU that eats NaN.
    caught("nan-lost-by-relu", "relu/f32/n1000/-/special", Class, |_, _| {
        each::<f32>(|v, _| v.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0))
    }),
    caught("sign-of-zero-lost", "relu/f32/n1000/-/special", Bits, |_, _| {
        each::<f32>(|v, _| v.iter_mut().filter(|x| **x == 0.0).for_each(|x| *x = 0.0))
    }),
    caught("softmax-without-maximum", "softmax/f32/m9,n40/-/wide", Class, |c, inputs| {
        let (n, x) = (size(c, "n"), numbers::<f32>(inputs, 0));
        each::<f32>(move |v, _| {
            for (y, x) in v.chunks_mut(n).zip(x.chunks(n)) {
                let total: f32 = x.iter().map(|x| x.exp()).sum();
                y.iter_mut().zip(x).for_each(|(y, x)| *y = x.exp() / total);
            }
        })
    }),
    // Integers.
    caught("sum-in-32-bits", "sum/i32/outer1,n1000,inner1/-/special", Bits, |_, _| {
        each::<i64>(|v, _| v[0] = i64::from(v[0] as i32))
    }),
    caught("one-bit-of-an-integer", "add/i32/n65537/-/integer", Bits, |_, _| each::<i32>(|v, _| v[65_536] ^= 1)),
    caught("one-element-lost-in-a-long-sum", "sum/f32/outer1,n100003,inner1/-/integer", Bits, |_, inputs| {
        let last = numbers::<f32>(inputs, 0).into_iter().rfind(|x| *x != 0.0).unwrap_or(1.0);
        each::<f32>(move |v, _| v[0] -= last)
    }),
    // Places.
    caught("tail-left-out", "relu/f32/n257/-/uniform", Unwritten, |_, _| {
        Box::new(|bytes, reads| {
            let from = bytes.len() - 4;
            bytes[from..].fill(super::station::POISON[(reads % 2) as usize]);
        })
    }),
    caught("tail-of-zeros", "add/f32/n257/-/uniform", Bound, |_, _| each::<f32>(|v, _| v[250..].fill(0.0))),
    caught("all-elements-equal", "softmax/f32/m7,n33/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| v.fill(0.030_303_03))
    }),
    caught("axes-swapped-square", "transpose/f32/m64,n64/-/uniform", Bits, |_, inputs| {
        let x = numbers::<f32>(inputs, 0);
        each::<f32>(move |v, _| v.copy_from_slice(&x))
    }),
    caught("result-transposed", "gemm/f32/m64,n64,k64/-/integer", Bits, |_, _| {
        each::<f32>(|v, _| {
            let x = v.to_vec();
            (0..64 * 64).for_each(|i| v[i] = x[i % 64 * 64 + i / 64]);
        })
    }),
    caught("rows-exchanged", "softmax/f32/m7,n33/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| {
            let (a, b) = v.split_at_mut(33);
            a.swap_with_slice(&mut b[..33]);
        })
    }),
    around("write-behind-the-end", 0),
    around("write-far-behind-the-end", 2048),
    around("write-in-front", -4),
    // A bit of memory that lies: the largest product, its smallest bit.
    caught("one-flipped-bit-of-4096x4096", "gemm/f32/m4096,n4096,k1/-/integer", Whole, |_, _| {
        Box::new(|bytes, _| bytes[4 * (3001 * 4096 + 1777)] ^= 1)
    }),
    caught("changes-between-runs", "sum/f32/outer1,n257,inner1/-/uniform", Repeat, |_, _| {
        each::<f32>(|v, reads| v[0] += (reads % 2) as f32)
    }),
    // Legal deviations.
    allowed(
        "another-order-of-summation",
        "sum/f32/outer1,n100003,inner1/-/uniform",
        "gamma_n holds for any order",
        |_, i| {
            let x = numbers::<f32>(i, 0);
            let s: f32 = x.iter().rev().step_by(2).chain(x.iter().rev().skip(1).step_by(2)).sum();
            each::<f32>(move |v, _| v[0] = s)
        },
    ),
    allowed(
        "one-ulp-of-exp",
        "exp/f32/n257/-/uniform",
        "exp on the CPU: 1.5 ulp and the nearest number",
        |_, inputs| {
            let x = numbers::<f32>(inputs, 0);
            // The neighbour on the other side of the exact value: within one ulp.
            each::<f32>(move |v, _| {
                let exact = f64::from(x[7]).exp();
                v[7] = if f64::from(v[7]) < exact { v[7].next_up() } else { v[7].next_down() };
            })
        },
    ),
    // Kernel texts with one place changed.
    // What it makes of an input's guard is the guard's own pattern, NaN: the output's must differ.
    text("c-bound-of-another-index", "relu/f32/n257/-/uniform", Guards, OpenclC, "if (WITHIN(i, n))", "if (j < n)"),
    text("c-off-by-one-tail", "relu/f32/n257/-/uniform", Unwritten, OpenclC, "if (WITHIN(i, n))", "if (i + 1 < n)"),
    text(
        "c-broadcast-along-one-axis-only",
        "add/f32/n210/a_shape=2:3:5:7,b_shape=3:1:7/uniform",
        Bound,
        OpenclC,
        "i1 * b1",
        "i1",
    ),
    race("c-barrier-missing", "transpose/f32/m33,n65/-/uniform", Bits, OpenclC, "BARRIER();", ""),
    // Stale local memory at the edges of tiles (no `else 0`).
    text(
        "c-edge-of-tile-stale",
        "gemm/f32/m17,n33,k65/-/uniform",
        Class,
        OpenclC,
        "row < rows && col < k",
        "row < rows",
    ),
    text("c-beta-zero-reads-c", "gemm/f32/m9,n11,k5/-/special", Class, OpenclC, "if (beta != (ACC)0)", "if (m != 0)"),
    text("wgsl-broadcast-wrong", "add/f32/n210/a_shape=2:3:5:7,b_shape=3:1:7/uniform", Bound, Wgsl, "i1 * p.b1", "i1"),
    text(
        "wgsl-stride-swapped",
        "transpose/f32/m33,n65/-/uniform",
        Bits,
        Wgsl,
        "row * p.m + column",
        "row * p.n + column",
    ),
    race("wgsl-barrier-missing", "transpose/f32/m33,n65/-/uniform", Bits, Wgsl, "    workgroupBarrier();\n", ""),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Body;
    use crate::op::{self, case};

    #[test]
    fn there_are_at_least_thirty_and_each_has_a_case() {
        assert!(all().count() >= 55, "{}", all().count());
        let mut names: Vec<_> = all().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count(), "names are unique");
        for f in all() {
            let c = case::parse(f.case).unwrap_or_else(|e| panic!("{}: {}: {e}", f.name, f.case));
            // The place that a text's fault changes is there.
            if let Fault::Text { lang, from, .. } = f.fault {
                let has = |k: &crate::kernel::Kernel| match (k.body, lang) {
                    (Body::C(text), OpenclC) | (Body::Wgsl(text), Wgsl) => text.contains(from),
                    _ => false,
                };
                assert!(op::find(c.op).unwrap().kernels.iter().any(has), "{}: no text has '{from}'", f.name);
            }
        }
        for d in Detector::ALL {
            assert!(
                all().any(|f| matches!(f.expect, Expect::Caught(by) if by == d)),
                "no fault for the detector {}",
                d.name()
            );
        }
    }
}
