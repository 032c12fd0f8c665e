"""Inputs and expected results of some ops by NumPy and SciPy, for tests/run.rs: reference.py FOLDER.

For every case, named OP or OP-WHAT, its folder in FOLDER gets in0.npy, in1.npy, ... (f32, some big-endian or in Fortran order) and want0.npy, ...
(f64, computed in f64 from the same numbers). Nothing here knows gpuctl. With --load FILES it prints what NumPy reads back.
"""

import os
import sys

import numpy as np


def windows(x, kh, kw, stride):
    """[n, c, oh, ow, kh, kw] of x[n, c, h, w]."""
    view = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))
    return view[:, :, ::stride, ::stride]


def conv2d(x, w):
    """Strides 2, padding 1 on every side; cross-correlation by SciPy, plane by plane."""
    from scipy.signal import correlate2d

    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    planes = [[sum(correlate2d(img[c], k[c], mode="valid") for c in range(len(img))) for k in w] for img in x]
    return np.array(planes)[:, :, ::2, ::2]


def softmax(x):
    from scipy.special import softmax as reference

    return reference(x, axis=-1)


def layernorm(x, gamma, beta):
    mean = x.mean(axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return (x - mean) * rstd * gamma + beta, mean, rstd


def cases(rng):
    u = lambda *shape: rng.uniform(-1.0, 1.0, shape).astype(np.float32)
    yield "gemm", [np.asfortranarray(u(37, 53)), u(53, 29).astype(">f4")], lambda a, b: a @ b
    yield "softmax", [(20 * u(19, 67))], softmax
    # Rows far from 0, of both signs and of neither: without the maximum taken off, every exponential overflows or vanishes.
    rows = np.concatenate([1e4 + u(5, 67), u(5, 67) - 1e4, 1e4 * np.sign(u(5, 67)), np.full((1, 67), -np.inf)])
    yield "softmax-far", [rows.astype(np.float32)], softmax
    yield "conv2d", [u(2, 3, 17, 14), u(5, 3, 3, 3)], conv2d
    yield "maxpool2d", [u(2, 3, 17, 14)], lambda x: windows(x, 2, 2, 2).max(axis=(4, 5))
    yield "layernorm", [u(23, 96), 1 + u(96) / 2, u(96)], layernorm
    # A mean 10^6 times the deviation: the mean of squares less the square of the mean has no digit left in f32.
    yield "layernorm-far", [(1e4 + u(23, 96) / 50).astype(np.float32), 1 + u(96) / 2, u(96)], layernorm


def main():
    if sys.argv[1] == "--load":
        for path in sys.argv[2:]:
            a = np.load(path)
            print(a.dtype.str, *a.shape, float(np.nan_to_num(a.astype(np.float64)).sum()))
        return
    for name, inputs, f in cases(np.random.default_rng(20260731)):
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder)
        for i, a in enumerate(inputs):
            np.save(os.path.join(folder, f"in{i}.npy"), a)
        with np.errstate(invalid="ignore"):
            wants = f(*[a.astype(np.float64) for a in inputs])
        for i, want in enumerate(wants if isinstance(wants, tuple) else (wants,)):
            np.save(os.path.join(folder, f"want{i}.npy"), want)


main()
