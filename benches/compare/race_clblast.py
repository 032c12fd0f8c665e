#!/usr/bin/env python3
"""Races gpuctl's portable OpenCL gemm against CLBlast's Sgemm on the same OpenCL device.

Usage: benches/compare/race_clblast.py BINARY [--device opencl:0] [--sizes 256,512,1024,2048] [--rounds 5] [--json FILE]
CLBlast and the OpenCL loader are opened at run time (Debian: libclblast1, ocl-icd-libopencl1). Both sides take turns,
round by round, each in a process of its own; operands stay on the device on both sides. Beside the ratio stands the share
of the device's own fused multiply-add peak, measured by a small kernel in the same run.
"""

import argparse
import array
import ctypes
import json
import os
import random
import sys

import opencl
import records

PEAK = b"""
__kernel void peak(__global float *y, int n) {
    float16 b = (float16)(1.0f), c = (float16)(1e-3f), s = (float16)(0.0f), x[12];
    #pragma unroll
    for (int j = 0; j < 12; j++) x[j] = (float16)(get_global_id(0) * 1e-9f + j);
    for (int i = 0; i < n; i++) {
        #pragma unroll
        for (int j = 0; j < 12; j++) x[j] = fma(x[j], b, c);
    }
    #pragma unroll
    for (int j = 0; j < 12; j++) s += x[j];
    y[get_global_id(0)] = s.s0 + s.s7 + s.sf;
}
"""


def peak(device, seconds):
    """GFLOP/s of fused multiply-adds on 16-vectors, twelve chains beside each other, so that none waits for the last."""
    items, loops = 1 << 14, 2000
    kernel = device.kernel(PEAK, b"peak", device.buffer(array.array("f", bytes(4 * items))), ctypes.c_int(loops))
    best = min(records.sampled(lambda: device.launch(kernel, items), seconds))
    return items * loops * 12 * 16 * 2 / best / 1e9


def child(index, size, seconds):
    """Prints CLBlast's median seconds for one size and the device's peak. The result is checked at a few elements."""
    blast = ctypes.CDLL("libclblast.so.1")
    device = opencl.Device(index)
    random.seed(1)
    row = [random.uniform(-1, 1) for _ in range(4096)]
    fill = lambda shift: array.array("f", (row * (size * size // 4096 + 2))[shift:shift + size * size])
    a, b = fill(0), fill(7)
    ma, mb, mc = device.buffer(a), device.buffer(b), device.buffer(array.array("f", bytes(4 * size * size)))
    n, zero = ctypes.c_size_t(size), ctypes.c_size_t(0)

    def call():
        status = blast.CLBlastSgemm(101, 111, 111, n, n, n, ctypes.c_float(1.0), ma, zero, n, mb, zero, n,
                                    ctypes.c_float(0.0), mc, zero, n, ctypes.byref(device.queue), None)
        device.check(status)
        device.finish()

    samples = records.sampled(call, seconds)
    c = device.read(mc, size * size)
    for i, j in [(0, 0), (size // 2, size // 3), (size - 1, size - 1)]:
        want = sum(a[i * size + k] * b[k * size + j] for k in range(size))
        if abs(c[i * size + j] - want) > 1e-4 * size:
            sys.exit(f"race_clblast: CLBlast's result is wrong at {i},{j}")
    print(json.dumps({"median_s": records.median(samples), "peak": peak(device, min(seconds, 1.0))}))


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--sizes", default="256,512,1024,2048")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per side, size and round")
    parser.add_argument("--json")
    args = parser.parse_args()
    binary, index = os.path.abspath(args.binary), int(args.device.split(":")[1])
    rows, command = [], ""
    print(f"CLBlast Sgemm against gpuctl gemm f32 on {args.device}, {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'n':>6} {'CLBlast GFLOP/s':>16} {'gpuctl':>8} {'CLBlast / gpuctl time':>22}  range        share of FMA peak")
    for size in (int(s) for s in args.sizes.split(",")):
        rival, ours, peaks = [], [], []
        for _ in range(args.rounds):
            they = records.child(__file__, index, size, args.seconds)
            rival.append(they["median_s"])
            peaks.append(they["peak"])
            found, command = records.bench(
                binary, ["--device", args.device, "--op", "gemm", "--dtype", "f32", "--sizes", str(size), "--budget",
                         f"{max(args.seconds, 4):g}s"], None)
            good = [r for r in found if records.usable(r) and r["device"] == args.device]
            if not good:
                sys.exit(f"race_clblast: {command}: {found[0]['status'] if found else 'no row'}: "
                         f"{found[0]['reason'] if found else ''}")
            ours.append(good[0]["median_s"])
        ratios = [t / o for t, o in zip(rival, ours)]
        rate = lambda s: 2 * size**3 / s / 1e9
        row = {"op": "gemm", "dtype": "f32", "n": size, "clblast_s": records.median(rival),
               "gpuctl_s": records.median(ours), "ratio": records.median(ratios), "ratio_range": records.spread(ratios),
               "peak_gflops": records.median(peaks), "gpuctl_command": command}
        rows.append(row)
        low, high = row["ratio_range"]
        share = rate(row["gpuctl_s"]) / row["peak_gflops"]
        print(f"{size:>6} {rate(row['clblast_s']):>16.1f} {rate(row['gpuctl_s']):>8.1f} {row['ratio']:>22.2f}"
              f"  {low:.2f} .. {high:.2f}  {share:.2f} of {row['peak_gflops']:.0f}", flush=True)
    print(f"made by: {command}")
    if args.json:
        records.write(args.json, {"schema": 1, "rival": "CLBlast", "rows": rows})


if __name__ == "__main__":
    main()
