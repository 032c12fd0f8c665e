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
import subprocess
import sys

import records

PEAK = b"""
__kernel void peak(__global float *y, int n) {
    float16 a = (float16)(get_global_id(0) * 1e-9f), b = (float16)(1.0f), c = a + 1e-3f, d = a + 2e-3f, e = a + 3e-3f;
    for (int i = 0; i < n; i++) { a = fma(a, b, c); c = fma(c, b, d); d = fma(d, b, e); e = fma(e, b, a); }
    float16 s = a + c + d + e;
    y[get_global_id(0)] = s.s0 + s.s7 + s.sf;
}
"""


class Device:
    """The n-th OpenCL device over all platforms, as gpuctl counts them."""

    def __init__(self, index):
        self.cl = cl = ctypes.CDLL("libOpenCL.so.1")
        for name in ("clCreateContext", "clCreateCommandQueue", "clCreateBuffer", "clCreateProgramWithSource",
                     "clCreateKernel"):
            getattr(cl, name).restype = ctypes.c_void_p
        count = ctypes.c_uint()
        self.check(cl.clGetPlatformIDs(0, None, ctypes.byref(count)))
        platforms = (ctypes.c_void_p * count.value)()
        self.check(cl.clGetPlatformIDs(count, platforms, None))
        devices = []
        for p in platforms:
            found = ctypes.c_uint()
            everything = ctypes.c_ulong(0xFFFFFFFF)
            if cl.clGetDeviceIDs(ctypes.c_void_p(p), everything, 0, None, ctypes.byref(found)) != 0:
                continue
            list_ = (ctypes.c_void_p * found.value)()
            self.check(cl.clGetDeviceIDs(ctypes.c_void_p(p), everything, found, list_, None))
            devices += list(list_)
        if index >= len(devices):
            sys.exit(f"race_clblast: no OpenCL device {index}; there are {len(devices)}")
        self.device = ctypes.c_void_p(devices[index])
        status = ctypes.c_int()
        one = (ctypes.c_void_p * 1)(self.device.value)
        self.context = ctypes.c_void_p(cl.clCreateContext(None, 1, one, None, None, ctypes.byref(status)))
        self.check(status.value)
        self.queue = ctypes.c_void_p(
            cl.clCreateCommandQueue(self.context, self.device, ctypes.c_ulong(0), ctypes.byref(status)))
        self.check(status.value)

    def check(self, status):
        if status != 0:
            sys.exit(f"race_clblast: OpenCL status {status}")

    def buffer(self, data):
        status, size = ctypes.c_int(), ctypes.c_size_t(len(data) * 4)
        raw = (ctypes.c_float * len(data)).from_buffer(data)
        mem = ctypes.c_void_p(
            self.cl.clCreateBuffer(self.context, ctypes.c_ulong(1 | 32), size, raw, ctypes.byref(status)))
        self.check(status.value)
        return mem

    def read(self, mem, count):
        out = array.array("f", bytes(4 * count))
        raw = (ctypes.c_float * count).from_buffer(out)
        self.check(self.cl.clEnqueueReadBuffer(self.queue, mem, 1, ctypes.c_size_t(0), ctypes.c_size_t(4 * count), raw,
                                               0, None, None))
        return out

    def finish(self):
        self.check(self.cl.clFinish(self.queue))

    def peak(self, seconds):
        """GFLOP/s of independent fused multiply-adds on 16-vectors."""
        cl, status = self.cl, ctypes.c_int()
        text = (ctypes.c_char_p * 1)(PEAK)
        program = ctypes.c_void_p(cl.clCreateProgramWithSource(self.context, 1, text, None, ctypes.byref(status)))
        self.check(status.value)
        self.check(cl.clBuildProgram(program, 0, None, None, None, None))
        kernel = ctypes.c_void_p(cl.clCreateKernel(program, b"peak", ctypes.byref(status)))
        self.check(status.value)
        items, loops = 1 << 14, 2000
        y, n = self.buffer(array.array("f", bytes(4 * items))), ctypes.c_int(loops)
        self.check(cl.clSetKernelArg(kernel, 0, ctypes.c_size_t(8), ctypes.byref(y)))
        self.check(cl.clSetKernelArg(kernel, 1, ctypes.c_size_t(4), ctypes.byref(n)))
        globals_ = (ctypes.c_size_t * 1)(items)

        def call():
            self.check(cl.clEnqueueNDRangeKernel(self.queue, kernel, 1, None, globals_, None, 0, None, None))
            self.finish()

        best = min(records.sampled(call, seconds))
        return items * loops * 4 * 16 * 2 / best / 1e9


def child(index, size, seconds):
    """Prints CLBlast's median seconds for one size and the device's peak. The result is checked at a few elements."""
    blast = ctypes.CDLL("libclblast.so.1")
    device = Device(index)
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
    print(json.dumps({"median_s": records.median(samples), "peak": device.peak(min(seconds, 1.0))}))


def theirs(index, size, seconds):
    command = [sys.executable, __file__, "--child", str(index), str(size), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"race_clblast: {' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


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
            they = theirs(index, size, args.seconds)
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
