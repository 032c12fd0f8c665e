#!/usr/bin/env python3
"""Races gpuctl's CPU kernels against PyTorch, MKL, NumPy's OpenBLAS and rten on the same machine at the same time.

Usage: benches/compare/race_cpu.py SERVER [--only gemm,conv,stream,math,nn] [--threads 2,1] [--rounds 5] [--json FILE]
SERVER is the bench target `cpu` (cargo bench --bench cpu --no-run says where it lies). The rivals come from pip and, rten, from
crates.io (benches/compare/fetch-rivals). Each side is one process that waits for requests, so that only one of them computes at a
time; they take turns, round by round, on operands and results that exist. A rival's threads are given time to fall asleep
before the next side begins. Printed: the best rival by its median, and the median of its time by ours over the rounds
(above 1: gpuctl is faster), with the smallest and the largest. Convolutions: each side in the better of its two layouts.
"""

import argparse
import glob
import json
import math
import os
import pathlib
import subprocess
import sys
import time

import records

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GEMM = [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096]
SKINNY = [(1, 1024, 1024), (4, 1024, 1024), (16, 1024, 1024), (64, 1024, 1024), (1024, 1, 1024), (1024, 4, 1024),
          (1024, 16, 1024), (1024, 64, 1024), (1024, 1024, 1), (1024, 1024, 4), (1024, 1024, 16), (1024, 1024, 32),
          (8, 8, 65536), (32, 32, 16384), (128, 128, 8192), (4096, 64, 64), (64, 4096, 64), (4096, 32, 256),
          (3, 3000, 300), (2000, 7, 70)]
# n, c, h, w, co, k, stride, pad, groups: eight of ResNet-50, four of MobileNet
CONV = [(3, 224, 224, 64, 7, 2, 3, 1), (64, 56, 56, 64, 1, 1, 0, 1), (64, 56, 56, 64, 3, 1, 1, 1),
        (64, 56, 56, 256, 1, 1, 0, 1), (128, 28, 28, 128, 3, 1, 1, 1), (256, 56, 56, 128, 1, 2, 0, 1),
        (256, 14, 14, 256, 3, 1, 1, 1), (512, 7, 7, 2048, 1, 1, 0, 1), (32, 112, 112, 32, 3, 1, 1, 32),
        (128, 56, 56, 128, 3, 2, 1, 128), (512, 14, 14, 512, 3, 1, 1, 512), (512, 14, 14, 512, 1, 1, 0, 1)]
SIZES = [1000, 1 << 16, 1 << 20, 1 << 24]
STREAM = ["add", "mul", "copy", "sum", "relu", "sqrt", "axpy", "dot", "max"]
# Rivals with more than products.
MANY = ("torch", "rten")
MATH = ["exp", "log", "tanh", "sigmoid", "gelu", "sin", "cos", "pow"]


def cases(groups):
    """(group, our case name, what the rivals are told)."""
    for dtype in ("f32", "f64"):
        if "gemm" in groups:
            for m, n, k in [(n, n, n) for n in GEMM] + SKINNY:
                yield "gemm", f"gemm/{dtype}/m{m},n{n},k{k}/-/uniform", ("gemm", dtype, [m, n, k])
    if "conv" in groups:
        for batch in (1, 8):
            for c, h, w, co, k, stride, pad, group in CONV:
                attrs = f"strides={stride}:{stride},pads={pad}:{pad},group={group}"
                dims = f"n{batch},c{c},h{h},w{w},co{co},kh{k},kw{k}"
                for op in ("conv2d", "conv2d_bwd_data", "conv2d_bwd_weight"):
                    yield op, f"{op}/f32/{dims}/{attrs}/uniform", (op, "f32", [batch, c, h, w, co, k, stride, pad, group])
    for group, ops in (("stream", STREAM), ("math", MATH)):
        for op in ops if group in groups else []:
            for n in SIZES:
                dims = f"outer1,n{n},inner1" if op in ("sum", "max") else f"n{n}"
                fill = "positive" if op in ("log", "sqrt", "pow") else "uniform"
                yield group, f"{op}/f32/{dims}/-/{fill}", (op, "f32", [n])
    if "nn" in groups:
        for m, n in [(128, 128), (1024, 1024), (16384, 1024)]:
            yield "nn", f"softmax/f32/m{m},n{n}/-/uniform", ("softmax", "f32", [m, n])
            yield "nn", f"layernorm/f32/m{m},n{n}/-/uniform", ("layernorm", "f32", [m, n])
            yield "nn", f"transpose/f32/m{m},n{n}/-/uniform", ("transpose", "f32", [m, n])
        for n, c, s in [(1, 64, 56), (8, 64, 56), (8, 256, 56)]:
            for op in ("batchnorm_train", "batchnorm_infer", "maxpool2d", "avgpool2d"):
                dims = f"n{n},c{c},inner{s * s}" if op.startswith("batch") else f"n{n},c{c},h{s},w{s}"
                attrs = "kernel_shape=2:2,strides=2:2" if op.endswith("pool2d") else "-"
                yield "nn", f"{op}/f32/{dims}/{attrs}/uniform", (op, "f32", [n, c, s, s])


def layouts(name):
    """The forms of one of our cases, by layout."""
    if not name.startswith("conv2d"):
        return {"": name}
    return {"NCHW": name, "NHWC": name.replace("/strides", "/layout=NHWC,strides")}


def torch_calls(torch, op, dtype, dims):
    """Calls of one op with operands and results that exist, by the name of the form."""
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    rand = lambda *s: torch.rand(*s, dtype=kind) * 2 - 1
    fn = torch.nn.functional
    if op == "gemm":
        m, n, k = dims
        a, b, out = rand(m, k), rand(k, n), torch.empty(m, n, dtype=kind)
        return {"matmul": lambda: torch.matmul(a, b, out=out)}
    if op.startswith("conv2d"):
        n, c, h, w, co, k, stride, pad, group = dims
        x, f = rand(n, c, h, w), rand(co, c // group, k, k)
        y = fn.conv2d(x, f, stride=stride, padding=pad, groups=group)
        g = torch.rand_like(y)

        def call(x, f, g):
            if op == "conv2d":
                return lambda: fn.conv2d(x, f, stride=stride, padding=pad, groups=group)
            mask = [op == "conv2d_bwd_data", op == "conv2d_bwd_weight", False]
            return lambda: torch.ops.aten.convolution_backward(
                g, x, f, None, [stride, stride], [pad, pad], [1, 1], False, [0, 0], group, mask)

        last = [t.to(memory_format=torch.channels_last) for t in (x, f, g)]
        return {"NCHW": call(x, f, g), "channels_last": call(*last)}
    if op in ("maxpool2d", "avgpool2d", "batchnorm_train", "batchnorm_infer"):
        x = rand(*dims)
        if op == "maxpool2d":
            return {"NCHW": lambda: fn.max_pool2d_with_indices(x, 2)}
        if op == "avgpool2d":
            return {"NCHW": lambda: fn.avg_pool2d(x, 2)}
        c = dims[1]
        mean, var, w, b = torch.zeros(c), torch.ones(c), torch.ones(c), torch.zeros(c)
        training = op == "batchnorm_train"
        return {"NCHW": lambda: torch.ops.aten.native_batch_norm(x, w, b, mean, var, training, 0.1, 1e-5)}
    if op == "transpose":
        x = rand(*dims)
        out = torch.empty(dims[1], dims[0], dtype=kind)
        return {"copy_": lambda: out.copy_(x.t())}
    if op == "softmax":
        x = rand(*dims)
        out = torch.empty_like(x)
        return {"out": lambda: torch.softmax(x, dim=-1, out=out)}
    if op == "layernorm":
        x, w, b = rand(*dims), rand(dims[1]), rand(dims[1])
        out, mean, rstd = torch.empty_like(x), torch.empty(dims[0], 1), torch.empty(dims[0], 1)
        call = torch.ops.aten.native_layer_norm.out
        return {"out": lambda: call(x, [dims[1]], w, b, 1e-5, out0=out, out1=mean, out2=rstd)}
    x, y = rand(*dims), rand(*dims)
    if op in ("log", "sqrt", "pow"):
        x = x.abs() + 0.01
    out, one = torch.empty_like(x), torch.empty((), dtype=kind)
    if op == "relu":
        return {"clamp_min": lambda: torch.clamp_min(x, 0, out=out)}
    if op == "gelu":
        return {"out": lambda: torch.ops.aten.gelu.out(x, approximate="none", out=out)}
    if op == "copy":
        return {"copy_": lambda: out.copy_(x)}
    if op == "axpy":
        return {"add_": lambda: y.add_(x, alpha=2.0)}
    if op == "sum":
        return {"out": lambda: torch.sum(x, dim=0, out=one)}
    if op == "max":
        return {"amax": lambda: torch.amax(x, dim=0, out=one)}
    if op == "dot":
        return {"out": lambda: torch.dot(x, y, out=one)}
    if op in ("add", "mul", "pow"):
        call = getattr(torch, op)
        return {"out": lambda: call(x, y, out=out)}
    call = getattr(torch, op)
    return {"out": lambda: call(x, out=out)}


def blas_call(library, dtype, dims):
    """cblas of a library, row-major."""
    import ctypes

    import numpy

    kind, ctype, name = {"f32": (numpy.float32, ctypes.c_float, "cblas_sgemm"),
                         "f64": (numpy.float64, ctypes.c_double, "cblas_dgemm")}[dtype]
    m, n, k = dims
    rng = numpy.random.default_rng(1)
    a, b = (rng.uniform(-1, 1, s).astype(kind) for s in ((m, k), (k, n)))
    c = numpy.zeros((m, n), dtype=kind)
    gemm = getattr(library, name)
    gemm.restype = None
    i, p = ctypes.c_int, lambda x: x.ctypes.data_as(ctypes.c_void_p)
    args = (i(101), i(111), i(111), i(m), i(n), i(k), ctype(1), p(a), i(k), p(b), i(n), ctype(0), p(c), i(n))
    gemm(*args)
    if not numpy.allclose(c, a @ b, atol=1e-3 * k):
        raise SystemExit("race_cpu: a library's product is wrong: the call is not what it should be")
    return lambda: gemm(*args), (a, b, c)


def core_type(numpy):
    """What OpenBLAS takes the processor for; None where it is another library."""
    import ctypes

    for path in sorted(glob.glob(os.path.join(os.path.dirname(numpy.__file__), "..", "numpy.libs", "*openblas*"))):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(library, name):
                tell = getattr(library, name)
                tell.restype = ctypes.c_char_p
                return tell().decode()
    return None


def rival(kind, threads):
    """The other side: answers requests with its median seconds, form by form."""
    what = None
    if kind == "torch":
        import torch
        torch.set_num_threads(threads)
        print(json.dumps({"version": f"torch {torch.__version__}"}), flush=True)
    elif kind == "numpy":
        import numpy
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
        print(json.dumps({"version": f"numpy {numpy.__version__}, {blas.get('name')} {blas.get('version')}",
                          "core": core_type(numpy)}), flush=True)
    else:
        import ctypes
        what = ctypes.CDLL(os.environ["RACE_MKL"])
        print(json.dumps({"version": os.path.basename(os.environ["RACE_MKL"])}), flush=True)
    for line in sys.stdin:
        op, dtype, dims, seconds = json.loads(line)
        if kind == "torch":
            calls = torch_calls(torch, op, dtype, dims)
        elif kind == "numpy":
            m, n, k = dims
            rng, t = numpy.random.default_rng(1), {"f32": "f4", "f64": "f8"}[dtype]
            a, b = rng.uniform(-1, 1, (m, k)).astype(t), rng.uniform(-1, 1, (k, n)).astype(t)
            out = numpy.zeros((m, n), dtype=t)
            calls = {"matmul": lambda: numpy.matmul(a, b, out=out)}
        else:
            call, _keep = blas_call(what, dtype, dims)
            calls = {"cblas": call}
        found = {name: records.median(records.sampled(call, seconds)) for name, call in calls.items()}
        print(json.dumps(found), flush=True)


class Side:
    """A process that waits for requests."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)

    def ask(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.heard()

    def heard(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"race_cpu: {self.process.args[0]} ended with {self.process.wait()}")
        return json.loads(line)


def main():
    if sys.argv[1:2] == ["--rival"]:
        return rival(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("--only", default="gemm,conv,stream,math,nn")
    parser.add_argument("--match", default="", help="only cases whose name contains this text")
    parser.add_argument("--threads", default=f"{len(os.sched_getaffinity(0))},1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="per side, case and round")
    parser.add_argument("--rivals", default="torch,mkl,numpy,rten")
    parser.add_argument("--json")
    args = parser.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "rivals"
    packages = sorted(glob.glob(f"{target}/lib*/python3*/site-packages") + glob.glob(f"{target}/local/lib*/python3*/*-packages"))
    mkl = sorted(glob.glob(f"{target}/**/libmkl_rt.so*", recursive=True))
    groups, rows, versions = args.only.split(","), [], {}
    for threads in (int(t) for t in args.threads.split(",")):
        env = {**os.environ, "PYTHONPATH": ":".join(packages), "OMP_NUM_THREADS": str(threads), "MKL_DYNAMIC": "FALSE",
               "MKL_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "MKL_THREADING_LAYER": "GNU",
               "RAYON_NUM_THREADS": str(threads), "RACE_MKL": mkl[-1] if mkl else ""}
        wanted = [r for r in args.rivals.split(",") if r in MANY or "gemm" in groups]
        command = lambda r: [target / "bin" / "rten-rival"] if r == "rten" else [sys.executable, __file__, "--rival", r]
        rivals = {r: Side([*map(str, command(r)), str(threads)], env) for r in wanted}
        versions.update({r: side.heard() for r, side in rivals.items()})
        ours = Side([args.server, "--serve"], dict(os.environ))
        if threads == int(args.threads.split(",")[0]):
            for v in versions.values():
                print(v)
        print(f"\n{threads} threads, {args.rounds} rounds of {args.seconds:g} s\n{'case':<62} {'gpuctl':>10} {'rival':>10} "
              f"{'rival / gpuctl':>14}  range", flush=True)
        for group, name, told in cases(groups):
            if args.match not in name:
                continue
            times, own, bad = {}, {}, None
            for _ in range(args.rounds):
                for layout, form in layouts(name).items():
                    said = ours.ask(f"{threads} - {args.seconds} {form}")
                    if "error" in said:
                        bad = said["error"]
                        break
                    own.setdefault(layout, []).append((said["median_s"], said["variant"]))
                if bad:
                    break
                for r, side in rivals.items():
                    if r in MANY or told[0] == "gemm":
                        for form, t in side.ask(json.dumps([*told, args.seconds])).items():
                            times.setdefault(f"{r} {form}", []).append(t)
                        # A waiting thread of OpenBLAS spins for 2^26 cycles.
                        time.sleep(0.05)
            if bad:
                print(f"{name:<62} {bad}", flush=True)
                rows.append({"case": name, "threads": threads, "error": bad})
                continue
            if not times:
                # None of the rivals that were asked for has it.
                continue
            layout = min(own, key=lambda l: records.median(t for t, _ in own[l]))
            mine, variant = [t for t, _ in own[layout]], own[layout][-1][1]
            best = min(times, key=lambda r: records.median(times[r]))
            ratios = [t / o for t, o in zip(times[best], mine)]
            row = {"group": group, "case": name, "threads": threads, "gpuctl_s": records.median(mine), "variant": variant,
                   "layout": layout, "rivals_s": {r: records.median(t) for r, t in times.items()}, "best": best,
                   "ratio": records.median(ratios), "ratio_range": records.spread(ratios)}
            rows.append(row)
            low, high = row["ratio_range"]
            print(f"{name:<62} {row['gpuctl_s'] * 1e6:>8.1f}us {records.median(times[best]) * 1e6:>8.1f}us "
                  f"{row['ratio']:>14.2f}  {low:.2f} .. {high:.2f}  {best}{' against ' + layout if layout else ''}", flush=True)
        for side in [ours, *rivals.values()]:
            side.process.stdin.close()
            side.process.wait()
    good = [r for r in rows if "ratio" in r]
    for key in sorted({(r["group"], r["threads"]) for r in good}, key=str):
        own = [r["ratio"] for r in good if (r["group"], r["threads"]) == key]
        mean = math.exp(sum(map(math.log, own)) / len(own))
        print(f"{key[0]}, {key[1]} threads: geometric mean {mean:.2f}, least {min(own):.2f}, {sum(r < 1 for r in own)} of {len(own)} below 1")
    if args.json:
        cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "")
        records.write(args.json, {"schema": 1, "cpu": cpu, "rivals": versions, "rows": rows})


if __name__ == "__main__":
    main()
