//! rten's kernels as a rival in `race_cpu.py`: reads `[op, dtype, dims, seconds]`, a line each, and answers with the median
//! seconds of a call by the form that was called, or with `{}` for what rten's kernels do not have.
//!
//! Usage: rten-rival THREADS. Products use that many threads; functions, which rten's own operators cut into pieces for
//! their threads, are timed on one thread alone.

use std::io::{BufRead, Write};
use std::mem::MaybeUninit;
use std::time::Instant;

use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmUninitOptions};
use rten_simd::{SimdOp, SimdUnaryOp};
use rten_tensor::NdTensorView;
use rten_vecmath::{Cos, Exp, Gelu, Sigmoid, Sin, Softmax, Sum, Tanh};
use serde_json::{Value, json};

/// Shortest batch of calls that is timed, in seconds, and fewest batches: those of `records.py`.
const BATCH: f64 = 1e-3;
const LEAST: usize = 5;

/// Median seconds of a call, in as many batches as fit.
fn median(seconds: f64, mut call: impl FnMut()) -> f64 {
    call();
    let begin = Instant::now();
    call();
    let calls = (BATCH / begin.elapsed().as_secs_f64().max(1e-9)).ceil().max(1.0) as u32;
    let (all, mut times) = (Instant::now(), Vec::new());
    while times.len() < LEAST || all.elapsed().as_secs_f64() < seconds {
        let begin = Instant::now();
        (0..calls).for_each(|_| call());
        times.push(begin.elapsed().as_secs_f64() / f64::from(calls));
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Numbers from -1 to 1, the same every time.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn product(dims: &[usize], seconds: f64) -> Option<f64> {
    let [m, n, k] = *dims else { return None };
    let (a, b) = (numbers(m * k), numbers(k * n));
    let (a, b) = (NdTensorView::from_data([m, k], &a[..]), NdTensorView::from_data([k, n], &b[..]));
    let mut c = vec![MaybeUninit::new(0f32); m * n];
    let gemm = GemmExecutor::<f32>::new();
    let mut failed = false;
    let time = median(seconds, || {
        let (a, b) = (GemmInputA::Unpacked(a), GemmInputB::Unpacked(b));
        failed |= gemm.gemm_uninit(&mut c, a, b, GemmUninitOptions::default()).is_err();
    });
    (!failed).then_some(time)
}

fn function(op: &str, dims: &[usize], seconds: f64) -> Option<f64> {
    let row = *dims.last()?;
    let x = numbers(dims.iter().product());
    let mut y = vec![MaybeUninit::new(0f32); x.len()];
    macro_rules! unary {
        ($f:expr) => {{
            let f = $f;
            Some(median(seconds, || {
                std::hint::black_box(f.map(&x, &mut y));
            }))
        }};
    }
    match op {
        "exp" => unary!(Exp {}),
        "tanh" => unary!(Tanh {}),
        "sigmoid" => unary!(Sigmoid {}),
        "gelu" => unary!(Gelu {}),
        "sin" => unary!(Sin::new()),
        "cos" => unary!(Cos::new()),
        "sum" => Some(median(seconds, || {
            std::hint::black_box(Sum::new(&x).dispatch());
        })),
        "softmax" => Some(median(seconds, || {
            for (x, y) in x.chunks_exact(row).zip(y.chunks_exact_mut(row)) {
                std::hint::black_box(Softmax::new(x, y).dispatch());
            }
        })),
        _ => None,
    }
}

fn answer(line: &str, threads: usize) -> Option<Value> {
    let asked: Value = serde_json::from_str(line).ok()?;
    let (op, dtype, seconds) = (asked[0].as_str()?, asked[1].as_str()?, asked[3].as_f64()?);
    let dims: Vec<usize> =
        asked[2].as_array()?.iter().map(|d| d.as_u64().map(|d| d as usize)).collect::<Option<_>>()?;
    let time = match (dtype, op) {
        ("f32", "gemm") => product(&dims, seconds),
        ("f32", _) if threads == 1 => function(op, &dims, seconds),
        _ => None,
    };
    Some(time.map_or_else(|| json!({}), |t| json!({ "rten": t })))
}

fn main() -> std::io::Result<()> {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut out = std::io::stdout();
    let kernel = GemmExecutor::<f32>::new().kernel_name().to_string();
    writeln!(out, "{}", json!({ "version": "rten-gemm and rten-vecmath 0.27", "kernel": kernel }))?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        writeln!(out, "{}", answer(&line?, threads).unwrap_or_else(|| json!({})))?;
        out.flush()?;
    }
    Ok(())
}
