#!/usr/bin/env python3
"""Races gpuctl's kernels against PyTorch on the CPU and on CUDA devices: gemm, add, exp, softmax, sum.

Usage: benches/compare/race_torch.py BINARY [--device cpu,cuda:0] [--dtype f32] [--rounds 3] [--json FILE] [--quick]
Operands stay on the device on both sides (gpuctl: --residency resident); torch writes into outputs that exist. CUDA is
timed by events around a batch of 5 ms, synchronised at its end; gpuctl's calls share a wait in regions as long (--region
5ms). TF32 is off: f32 means f32 on both sides. The two sides take turns, round by round. Needs a python3 with torch; says so and
ends with code 3 where there is none.
"""

import argparse
import os
import sys

import records

# op and sizes in gpuctl's order of dimensions; sum reduces the middle one of outer, n, inner
CASES = [("gemm", (n, n, n)) for n in (256, 512, 1024, 2048, 4096)]
CASES += [(op, (n,)) for op in ("add", "exp") for n in (1 << 12, 1 << 16, 1 << 20, 1 << 24)]
CASES += [("sum", (1, n, 1)) for n in (1 << 16, 1 << 20, 1 << 24)]
CASES += [("softmax", (rows, 1024)) for rows in (64, 1024, 16384)]
QUICK = [("gemm", (64, 64, 64)), ("add", (4096,)), ("exp", (4096,)), ("sum", (1, 4096, 1)), ("softmax", (16, 128))]


def operation(torch, op, shape, dtype, device):
    """A call on operands that are there, with its output there too."""
    rand = lambda *s: torch.rand(*s, dtype=dtype, device=device) * 2 - 1
    if op == "gemm":
        m, n, k = shape
        a, b, out = rand(m, k), rand(k, n), torch.empty(m, n, dtype=dtype, device=device)
        return lambda: torch.matmul(a, b, out=out)
    if op == "softmax":
        x = rand(*shape)
        out = torch.empty_like(x)
        return lambda: torch.softmax(x, dim=-1, out=out)
    if op == "sum":
        x = rand(*shape)
        out = torch.empty(shape[0], shape[2], dtype=dtype, device=device)
        return lambda: torch.sum(x, dim=1, out=out)
    x, y = rand(*shape), rand(*shape)
    out = torch.empty_like(x)
    return (lambda: torch.add(x, y, out=out)) if op == "add" else (lambda: torch.exp(x, out=out))


def torch_samples(torch, op, shape, dtype, device, seconds):
    call = operation(torch, op, shape, dtype, device)
    if not device.startswith("cuda"):
        return records.sampled(call, seconds)

    def batch(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / count

    with torch.cuda.device(device):
        batch(3)
        count = max(1, min(1000, int(5e-3 / max(batch(3), 1e-7))))
        total, samples = 0.0, []
        while len(samples) < 5 or total < seconds:
            samples.append(batch(count))
            total += samples[-1] * count
        return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--device", help="gpuctl's ids [default: cpu and cuda:0 if torch sees one]")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f64"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="per side, case and round")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: shows that it works")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("race_torch: python3 has no torch", file=sys.stderr)
        return 3
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    rounds, seconds, cases = (1, 0.05, QUICK) if args.quick else (args.rounds, args.seconds, CASES)
    asked = args.device.split(",") if args.device else ["cpu"] + (["cuda:0"] if torch.cuda.is_available() else [])
    # torch has no OpenCL or Vulkan here: such devices have no rival.
    devices = [d for d in asked if d == "cpu" or d.startswith("cuda:")]
    dtype = {"f32": torch.float32, "f64": torch.float64}[args.dtype]
    binary, rows, missing = os.path.abspath(args.binary), [], 0
    print(f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads, {args.dtype}, {rounds} rounds")
    print(f"{'op':<8} {'shape':<16} {'device':<8} {'torch':>10} {'gpuctl':>10} {'torch / gpuctl':>14}")
    for device in devices:
        for op, shape in cases:
            text = "x".join(map(str, shape))
            theirs, ours, why = [], [], ""
            for _ in range(rounds):
                theirs.append(records.median(torch_samples(torch, op, shape, dtype, device, seconds)))
                found, command = records.bench(
                    binary, ["--device", device, "--op", op, "--dtype", args.dtype, "--shape", text, "--residency",
                             "resident", "--region", "5ms", "--processes", "1", "--budget", f"{max(seconds, 0.1):g}s"])
                # With a GPU named, the CPU's row may come along for the comparison.
                good = [r for r in found if records.usable(r) and r["device"] == device]
                if good:
                    ours.append(good[0]["median_s"])
                else:
                    why = "; ".join(f"{r['status']}: {r['reason']}" for r in found if r["kind"] == "bench") or "no row"
                    break
            if not ours:
                missing += 1
                print(f"{op:<8} {text:<16} {device:<8} {'':>10} {why}", flush=True)
                continue
            ratios = [t / o for t, o in zip(theirs, ours)]
            row = {"op": op, "dtype": args.dtype, "shape": text, "device": device, "torch_s": records.median(theirs),
                   "gpuctl_s": records.median(ours), "ratio": records.median(ratios),
                   "ratio_range": records.spread(ratios), "variant": good[0]["variant"], "gpuctl_command": command}
            rows.append(row)
            print(f"{op:<8} {text:<16} {device:<8} {row['torch_s'] * 1e6:>8.1f}us {row['gpuctl_s'] * 1e6:>8.1f}us "
                  f"{row['ratio']:>14.2f}", flush=True)
    print("each gpuctl figure: the command in the JSON's gpuctl_command; each torch figure: the same op with out=")
    if args.json:
        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
        records.write(args.json, {"schema": 1, "torch": torch.__version__, "cuda": torch.version.cuda, "gpu": name,
                                  "cpu_threads": torch.get_num_threads(), "rows": rows})
    return 1 if missing or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
