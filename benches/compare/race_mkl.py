#!/usr/bin/env python3
"""Races the CPU's gemm against MKL's cblas_sgemm or cblas_dgemm on the same machine at the same time.

Usage: benches/compare/race_mkl.py BINARY [--sizes 512,1024,2048] [--dtype f32] [--threads N] [--rounds 5] [--json FILE]
MKL comes from its wheel (benches/compare/fetch-mkl). Both sides take turns, round by round, each in a process of its own
so that no thread of the other is awake; a round is several seconds per size. Printed: the median over the rounds of each
side's medians, and the median of the ratios of a round.
"""

import argparse
import ctypes
import glob
import json
import os
import pathlib
import subprocess
import sys

import records

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def mkl_folder():
    target = os.environ.get("CARGO_TARGET_DIR") or str(ROOT / "target")
    found = sorted(glob.glob(f"{target}/mkl/**/libmkl_rt.so*", recursive=True))
    if not found:
        sys.exit("race_mkl: no libmkl_rt; run benches/compare/fetch-mkl first")
    return found[-1]


def child(library, size, dtype, seconds):
    """Prints MKL's median seconds for one size. Random data; the result is checked against a few exact dot products."""
    import array
    import random

    mkl = ctypes.CDLL(library)
    code, ctype, name = {"f32": ("f", ctypes.c_float, "cblas_sgemm"), "f64": ("d", ctypes.c_double, "cblas_dgemm")}[dtype]
    random.seed(1)
    row = [random.uniform(-1, 1) for _ in range(4096)]
    fill = lambda shift: array.array(code, ((row * (size * size // 4096 + 2))[shift:shift + size * size]))
    a, b, c = fill(0), fill(7), array.array(code, bytes(size * size * array.array(code).itemsize))
    pointer = lambda x: (ctype * len(x)).from_buffer(x)
    pa, pb, pc = pointer(a), pointer(b), pointer(c)
    gemm = getattr(mkl, name)
    gemm.restype = None
    n, one, zero = ctypes.c_int(size), ctype(1.0), ctype(0.0)
    row_major, no_trans = ctypes.c_int(101), ctypes.c_int(111)
    call = lambda: gemm(row_major, no_trans, no_trans, n, n, n, one, pa, n, pb, n, zero, pc, n)
    samples = records.sampled(call, seconds)
    for i, j in [(0, 0), (size // 2, size // 3), (size - 1, size - 1)]:
        want = sum(a[i * size + k] * b[k * size + j] for k in range(size))
        if abs(c[i * size + j] - want) > 1e-4 * size:
            sys.exit(f"race_mkl: MKL's result is wrong at {i},{j}: the call is not what it should be")
    print(json.dumps({"median_s": records.median(samples), "samples": len(samples)}))


def mkl_median(library, size, dtype, threads, seconds):
    # GNU's OpenMP is on every machine; Intel's would have to be found first.
    env = {**os.environ, "MKL_THREADING_LAYER": "GNU", "MKL_NUM_THREADS": str(threads),
           "OMP_NUM_THREADS": str(threads), "MKL_DYNAMIC": "FALSE"}
    command = [sys.executable, __file__, "--child", library, str(size), dtype, str(seconds)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"race_mkl: {' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)["median_s"]


def main():
    if sys.argv[1:2] == ["--child"]:
        library, size, dtype, seconds = sys.argv[2:]
        return child(library, int(size), dtype, float(seconds))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--sizes", default="512,1024,2048")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f64"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per side, size and round")
    parser.add_argument("--json")
    args = parser.parse_args()
    binary, library = os.path.abspath(args.binary), mkl_folder()
    rows = []
    print(f"cblas_{'s' if args.dtype == 'f32' else 'd'}gemm of {os.path.basename(library)} (MKL_THREADING_LAYER=GNU) "
          f"against gpuctl, {args.threads} threads, {args.rounds} rounds of {args.seconds:g} s")
    print(f"{'n':>6} {'MKL GFLOP/s':>12} {'gpuctl':>8} {'MKL / gpuctl time':>18}  range of the ratio")
    for size in (int(s) for s in args.sizes.split(",")):
        theirs, ours, command = [], [], ""
        for _ in range(args.rounds):
            theirs.append(mkl_median(library, size, args.dtype, args.threads, args.seconds))
            found, command = records.bench(
                binary, ["--device", "cpu", "--op", "gemm", "--dtype", args.dtype, "--sizes", str(size), "--budget",
                         f"{args.seconds:g}s"], args.threads)
            good = [r for r in found if records.usable(r)]
            if not good:
                sys.exit(f"race_mkl: {command}: {found[0]['status'] if found else 'no row'}: "
                         f"{found[0]['reason'] if found else ''}")
            ours.append(good[0]["median_s"])
        ratios = [t / o for t, o in zip(theirs, ours)]
        rate = lambda s: 2 * size**3 / s / 1e9
        row = {"op": "gemm", "dtype": args.dtype, "n": size, "threads": args.threads, "mkl_s": records.median(theirs),
               "gpuctl_s": records.median(ours), "ratio": records.median(ratios), "ratio_range": records.spread(ratios),
               "mkl_call": "row-major, no transposes, alpha 1, beta 0", "gpuctl_command": command}
        rows.append(row)
        low, high = row["ratio_range"]
        print(f"{size:>6} {rate(row['mkl_s']):>12.1f} {rate(row['gpuctl_s']):>8.1f} {row['ratio']:>18.2f}"
              f"  {low:.2f} .. {high:.2f}", flush=True)
    print(f"made by: {command}")
    if args.json:
        records.write(args.json, {"schema": 1, "rival": os.path.basename(library), "rows": rows})


if __name__ == "__main__":
    main()
