#!/usr/bin/env python3
"""Holds gpuctl's memory-bound OpenCL kernels against a vectorised copy kernel on the same device.

Usage: benches/compare/race_copy.py BINARY [--device opencl:0] [--size 16777216] [--rounds 5] [--json FILE]
The copy moves 64 bytes per work-item and step; the best of three group sizes counts. It takes turns with gpuctl, op by op
and round by round, and moves as many bytes in all as the op does. gpuctl has the device alone in its runs, as the copy has;
it takes turns with the op on the CPU, so the copy takes turns with one of other buffers: caches hold the same share of both.
GB/s are by the byte formulas of gpuctl's ops: what must be read and written once. Operands stay on the device. The CPU's
naive variant is timed beside the device in one more run.
"""

import argparse
import array
import ctypes
import json
import os
import sys

import opencl
import records

# One op of each kind of access: read-write, two reads, in place, scalar, write only, read only, per channel, tiles.
OPS = ("copy,fill,neg,relu,relu_bwd,add,mul,add_scalar,accumulate,axpy,scal,triad,sum,mean,max,argmax,dot,nrm2,bias_add,"
       "bias_add_bwd,gemv,transpose,transpose_inplace").split(",")

# Runs of a round that may end without a usable figure (a disturbed one is SUSPECT and no figure).
RETRIES = 3

# Its sizes are sides.
SQUARE = ("gemv",)

COPY = b"""
__kernel void copy16(__global const uint16 *restrict x, __global uint16 *restrict y) {
    y[get_global_id(0)] = x[get_global_id(0)];
}
"""


def child(index, count, seconds):
    """Prints GB/s of the copy of `count` floats, a multiple of 16384."""
    device = opencl.Device(index)
    source = array.array("f", [1.5]) * count
    target = array.array("f", bytes(4 * count))
    x, y = device.buffer(source), device.buffer(target)
    kernel = device.kernel(COPY, b"copy16", x, y)
    other = device.kernel(COPY, b"copy16", device.buffer(source), device.buffer(target))
    best = 0.0
    for group in (64, 256, 1024):
        call, before = (lambda k=k: device.launch(k, count // 16, group) for k in (kernel, other))
        median = records.median(records.sampled(call, seconds / 3, before=before))
        best = max(best, 8 * count / median / 1e9)
    if device.read(y, count) != source:
        sys.exit("race_copy: the copy is wrong")
    print(json.dumps(best))


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--device", default="opencl:0")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--size", type=int, default=1 << 24, help="elements, a multiple of 16384")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per side and round")
    parser.add_argument("--json")
    args = parser.parse_args()
    binary, index = os.path.abspath(args.binary), int(args.device.split(":")[1])
    rows, missing, command = [], [], ""
    print(f"gpuctl f32 on {args.device}, {args.size} elements, against a copy of as many bytes in 64-byte vectors, {args.rounds} "
          "rounds")
    print(f"{'op':<16} {'GB/s':>7} {'copy':>7} {'op / copy':>10}  range         naive CPU / op time")
    for op in args.ops.split(","):
        ours, rival, naive = [], [], []
        size = str(int(args.size**0.5)) if op in SQUARE else str(args.size)
        bench = ["--op", op, "--dtype", "f32", "--sizes", size, "--residency", "resident", "--budget",
                 f"{max(2 * args.seconds, 3):g}s"]
        for _ in range(args.rounds):
            mine = None
            for _ in range(RETRIES):
                found, command = records.bench(binary, ["--device", args.device, *bench])
                mine = next((r for r in found if records.usable(r)), None)
                if mine:
                    break
                why = f"{found[0]['status']}: {found[0]['reason']}" if found else "no row"
                print(f"{op:<16} once more, {why}", flush=True)
            if mine is None:
                missing.append(op)
                break
            ours.append(mine["gbps"])
            moved = mine["gbps"] * 1e9 * mine["median_s"]
            rival.append(records.child(__file__, index, max(round(moved / 8 / 16384), 1) * 16384, args.seconds))
        if len(ours) < args.rounds:
            continue
        found, _ = records.bench(binary, ["--device", f"cpu,{args.device}", "--cpu-variant", "naive", *bench])
        by = {r["device"]: r["median_s"] for r in found if records.usable(r)}
        if {"cpu", args.device} <= by.keys():
            naive.append(by["cpu"] / by[args.device])
        ratios = [o / r for o, r in zip(ours, rival)]
        row = {"op": op, "n": int(size), "gbps": records.median(ours), "copy_gbps": records.median(rival),
               "ratio": records.median(ratios), "ratio_range": records.spread(ratios),
               "naive_ratio": records.median(naive) if naive else None, "gpuctl_command": command}
        rows.append(row)
        low, high = row["ratio_range"]
        beside = f"{row['naive_ratio']:.2f}" if naive else "no naive variant"
        print(f"{op:<16} {row['gbps']:>7.2f} {row['copy_gbps']:>7.2f} {row['ratio']:>10.2f}  {low:.2f} .. {high:.2f}  {beside}",
              flush=True)
    print(f"made by: {command}")
    if args.json:
        records.write(args.json, {"schema": 1, "rival": "vectorised copy", "rows": rows, "missing": missing})
    if missing:
        sys.exit(f"race_copy: no usable figure: {', '.join(missing)}")


if __name__ == "__main__":
    main()
