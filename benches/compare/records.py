"""What the races share: running gpuctl, reading its records, medians, writing the result. Standard library only."""

import json
import os
import statistics
import subprocess
import sys
import time


def bench(binary, args, threads=None):
    """Records of one `gpuctl bench` run and the command that made them."""
    command = [binary, "bench", *args, "--json", "-", "--quiet"]
    if threads:
        command += ["--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    shown = " ".join(["gpuctl", *command[1:]])
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{shown}: exit code {done.returncode}, no JSON: {done.stderr.strip()}")
    return document["records"], shown


def child(script, *args):
    """What a race's other side prints as JSON, run by itself so that none of its threads is awake beside gpuctl."""
    command = [sys.executable, script, "--child", *map(str, args)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def usable(record):
    return record["kind"] == "bench" and record["status"] == "ok"


def sampled(call, seconds, least=5, before=lambda: None):
    """Seconds per call: batches long enough for the clock, after a warm-up, until the time is over. `before` is called before
    each batch, untimed."""
    call()
    begun = time.perf_counter()
    call()
    batch = max(1, int(1e-3 / max(time.perf_counter() - begun, 1e-7)))
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < end:
        before()
        begun = time.perf_counter()
        for _ in range(batch):
            call()
        samples.append((time.perf_counter() - begun) / batch)
    return samples


def median(values):
    return statistics.median(values)


def spread(values):
    """Smallest and largest, for a few rounds a more honest word than an interval."""
    return [min(values), max(values)]


def write(path, document):
    """The whole file or none."""
    with open(path + ".part", "w") as f:
        json.dump(document, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)
