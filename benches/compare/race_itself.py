#!/usr/bin/env python3
"""How often does `gpuctl bench --baseline` call a build slower or faster than itself on this machine?

Usage: benches/compare/race_itself.py BINARY [--runs 20] [--processes 3] [-- BENCH ARGUMENTS]

Each comparison measures a baseline and then the same again. A sound rule calls rows SLOWER in at most 1 of 20.
"""

import argparse
import json
import subprocess
import sys
import tempfile

DEFAULT = ["--op", "gemm,add,exp,softmax,sum", "--sizes", "256,1024", "--device", "all", "--budget", "1s"]


def document(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if not done.stdout:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode} and no document")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gpuctl")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--processes", default="3")
    own, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    a = parser.parse_args(own.split())
    bench = [a.gpuctl, "bench", "--quiet", "--json", "-", "--processes", a.processes, *(rest.split() or DEFAULT)]
    print(" ".join(bench))
    slower = faster = 0
    for run in range(1, a.runs + 1):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(document(bench), file)
            file.flush()
            changes = [r for r in document([*bench, "--baseline", file.name])["records"] if r["kind"] == "change"]
        words = [c["verdict"] for c in changes]
        counts = {w: words.count(w) for w in sorted(set(words))}
        moved = [
            f"{c['op']} {c['shape_text']} {c['device']} x{c['ratio']:.2f} (machine x{c['machine_ratio'] or 1:.2f})"
            for c in changes
            if c["verdict"] in ("SLOWER", "FASTER")
        ]
        slower += "SLOWER" in words
        faster += "FASTER" in words
        print(f"{run}: {counts} {'; '.join(moved)}", flush=True)
    print(f"{slower} of {a.runs} comparisons call a row SLOWER, {faster} a row FASTER")


if __name__ == "__main__":
    main()
