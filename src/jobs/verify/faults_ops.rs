//! Faults that belong to one op's definition, planted into the CPU's results. Those that a real library had say so.

use crate::base::HostTensor;

use super::Detector::{Bits, Bound, Class};
use super::faults::{caught, each, numbers, size};
use super::self_test::Planted;

/// The mean of a 3 x 3 window of one channel, padded by one, over the pixels of the image or over 9.
fn window_mean(x: &[f32], h: usize, w: usize, at: usize, count_padding: bool) -> f32 {
    let (i, j) = (at / w % h, at % w);
    let channel = at / (w * h) * (w * h);
    let near = |c: usize, end: usize| c.saturating_sub(1)..=(c + 1).min(end - 1);
    let inside: Vec<f32> = near(i, h).flat_map(|i| near(j, w).map(move |j| x[channel + i * w + j])).collect();
    let count = if count_padding { 9.0 } else { inside.len() as f32 };
    inside.iter().sum::<f32>() / count
}

fn first_f32(inputs: &[HostTensor]) -> Vec<f32> {
    numbers(inputs, 0)
}

/// The faults.
pub(super) static OF_OPS: &[Planted] = &[
    // Saved statistics: the documentation of a well-known library called its reciprocal a variance.
    caught("variance-saved-as-rstd", "layernorm/f32/m7,n33/-/uniform", Bound, |_, _| {
        each::<f32>(|v, reads| {
            if reads % 3 == 2 {
                v.iter_mut().for_each(|r| *r = 1.0 / (*r * *r) - 1e-5);
            }
        })
    }),
    caught("variance-without-epsilon", "layernorm/f32/m5,n64/-/constant", Class, |_, _| {
        each::<f32>(|v, reads| {
            if reads % 3 == 2 {
                v.fill(f32::INFINITY);
            }
        })
    }),
    caught("variance-of-a-sample", "batchnorm_train/f32/n2,c3,inner49/-/uniform", Bound, |_, _| {
        each::<f32>(|v, reads| {
            if reads % 5 == 2 {
                v.iter_mut().for_each(|x| *x *= 98.0 / 97.0);
            }
        })
    }),
    caught("momentum-the-other-way", "batchnorm_train/f32/n2,c3,inner40/momentum=0.25/uniform", Bound, |_, inputs| {
        let old: Vec<f32> = numbers(inputs, 3);
        // The new mean is what 0.75 of it brought in; the fault keeps 0.75 of the old one instead.
        each::<f32>(move |v, reads| {
            if reads % 5 == 3 {
                for (x, old) in v.iter_mut().zip(&old) {
                    let new = (*x - 0.25 * old) / 0.75;
                    *x = 0.75 * old + 0.25 * new;
                }
            }
        })
    }),
    // Indices.
    caught("last-of-equal-places", "argmax/f32/outer3,n128,inner1/-/constant", Bits, |_, _| {
        each::<i32>(|v, _| v.fill(127))
    }),
    caught("index-in-eight-bits", "maxpool2d/f32/n1,c17,h33,w18/kernel_shape=3:3,strides=2:2/uniform", Bits, |_, _| {
        each::<i32>(|v, reads| {
            if reads % 2 == 1 {
                v.iter_mut().for_each(|i| *i &= 0xFF);
            }
        })
    }),
    caught("index-of-the-window", "maxpool2d/f32/n2,c3,h6,w6/strides=2:2/uniform", Bits, |_, _| {
        each::<i32>(|v, reads| {
            if reads % 2 == 1 {
                v.iter_mut().for_each(|i| *i %= 4);
            }
        })
    }),
    // pow by exp and log.
    caught("power-of-a-negative-is-nan", "pow/f32/n1000/-/special", Class, |_, inputs| {
        let base = first_f32(inputs);
        each::<f32>(move |v, _| {
            v.iter_mut().zip(&base).filter(|(_, b)| **b < 0.0).for_each(|(y, _)| *y = f32::NAN);
        })
    }),
    // Conversions: to = 3 is i8 by ONNX's numbers.
    caught("conversion-wraps", "cast/f32/n1000/to=3/special", Bits, |_, inputs| {
        let x = first_f32(inputs);
        each::<i8>(move |v, _| v.iter_mut().zip(&x).for_each(|(y, x)| *y = *x as i64 as i8))
    }),
    caught("bits-taken-for-a-conversion", "cast/f32/n1025/to=6/uniform", Bits, |_, inputs| {
        let x = first_f32(inputs);
        each::<i32>(move |v, _| v.iter_mut().zip(&x).for_each(|(y, x)| *y = x.to_bits() as i32))
    }),
    caught("division-rounds-down", "div/i32/n257/-/uniform", Bits, |_, inputs| {
        let (a, b): (Vec<i32>, Vec<i32>) = (numbers(inputs, 0), numbers(inputs, 1));
        each::<i32>(move |v, _| {
            for ((y, a), b) in v.iter_mut().zip(&a).zip(&b).filter(|(_, b)| **b != 0) {
                *y = a.wrapping_div_euclid(*b) - i32::from(a.wrapping_rem_euclid(*b) != 0 && *b < 0);
            }
        })
    }),
    caught("division-by-zero-is-minus-one", "div/i32/n1000/-/special", Bits, |_, inputs| {
        let b: Vec<i32> = numbers(inputs, 1);
        each::<i32>(move |v, _| v.iter_mut().zip(&b).filter(|(_, b)| **b == 0).for_each(|(y, _)| *y = -1))
    }),
    caught("maximum-skips-nan", "max/f32/outer5,n65,inner1/-/special", Class, |_, inputs| {
        let x = first_f32(inputs);
        each::<f32>(move |v, _| {
            for (y, row) in v.iter_mut().zip(x.chunks(65)) {
                *y = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            }
        })
    }),
    caught("sum-through-f64", "sum/i64/outer1,n256,inner1/-/wide", Bits, |_, inputs| {
        let x: Vec<i64> = numbers(inputs, 0);
        each::<i64>(move |v, _| v[0] = x.iter().map(|x| *x as f64).sum::<f64>() as i64)
    }),
    caught("norm-overflows", "nrm2/f32/n1000/-/special", Class, |_, _| each::<f32>(|v, _| v[0] = f32::MAX)),
    caught("norm-without-scaling", "nrm2/f32/n1023/-/wide", Bound, |_, inputs| {
        let x = first_f32(inputs);
        // Small squares vanish as they do on hardware that flushes.
        each::<f32>(move |v, _| {
            v[0] = x.iter().map(|x| x * x).filter(|s| *s > 1e-30 && *s < 1e30).sum::<f32>().sqrt();
        })
    }),
    // Functions that look alike.
    caught("gelu-by-tanh", "gelu/f32/n1025/-/uniform", Bound, |_, inputs| {
        let x = first_f32(inputs);
        each::<f32>(move |v, _| {
            for (y, x) in v.iter_mut().zip(&x) {
                let x = f64::from(*x);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                *y = (0.5 * x * (1.0 + inner.tanh())) as f32;
            }
        })
    }),
    caught("sigmoid-overflows", "sigmoid/f32/n1000/-/special", Class, |_, inputs| {
        let x = first_f32(inputs);
        each::<f32>(move |v, _| v.iter_mut().zip(&x).for_each(|(y, x)| *y = x.exp() / (1.0 + x.exp())))
    }),
    caught("operands-exchanged", "rsub_scalar/f32/n257/-/uniform", Bound, |_, _| {
        each::<f32>(|v, _| v.iter_mut().for_each(|y| *y = -*y))
    }),
    caught("bf16-cut-instead-of-rounded", "add/bf16/n257/-/uniform", Bound, |_, inputs| {
        let (a, b): (Vec<half::bf16>, Vec<half::bf16>) = (numbers(inputs, 0), numbers(inputs, 1));
        each::<half::bf16>(move |v, _| {
            for ((y, a), b) in v.iter_mut().zip(&a).zip(&b) {
                *y = half::bf16::from_bits(((a.to_f32() + b.to_f32()).to_bits() >> 16) as u16);
            }
        })
    }),
    // Windows.
    caught(
        "average-counts-padding",
        "avgpool2d/f32/n1,c3,h6,w6/kernel_shape=3:3,pads=1:1/onehot",
        Bound,
        |c, inputs| {
            let (h, w, x) = (size(c, "h"), size(c, "w"), first_f32(inputs));
            each::<f32>(move |v, _| {
                v.iter_mut().enumerate().for_each(|(at, y)| *y = window_mean(&x, h, w, at, true));
            })
        },
    ),
    caught(
        "channels-last-taken-for-first",
        "conv2d/f32/n2,c3,h9,w8,co4,kh3,kw3/layout=NHWC,pads=1:1/uniform",
        Bound,
        |_, _| {
            each::<f32>(|v, _| {
                let x = v.to_vec();
                let pixels = 72;
                for (at, y) in v.iter_mut().enumerate() {
                    let (image, channel, pixel) = (at / (4 * pixels), at / pixels % 4, at % pixels);
                    *y = x[(image * pixels + pixel) * 4 + channel];
                }
            })
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The fault must be the only difference: without counting the padding the helper computes what the op does.
    #[test]
    fn the_window_mean_is_the_ops_own_but_for_the_padding() {
        let x: Vec<f32> = (0..36).map(|i| i as f32).collect();
        assert_eq!(window_mean(&x, 6, 6, 0, false), (0.0 + 1.0 + 6.0 + 7.0) / 4.0);
        assert_eq!(window_mean(&x, 6, 6, 0, true), (0.0 + 1.0 + 6.0 + 7.0) / 9.0);
        assert_eq!(window_mean(&x, 6, 6, 14, true), 14.0);
    }
}
