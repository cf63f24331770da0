#!/usr/bin/env python3
"""What a rank loses when another program takes processors from it: prefill and decode speed of model_bench, alone and
beside busy loops on half of the processors, which end by themselves. Prints JSON.
usage: shared_cores.py MODEL.gguf [--bench MODEL_BENCH] [--before OTHER_MODEL_BENCH] [--rounds 5] [--prompt 256]
                       [--decode 64] [--threads N]
`kept` is the median, over the rounds, of a round's speed beside the loops over its speed alone: "pinned" are loops that
stay on their processor, "free" ones that the kernel may move. `against_before` is new speed over old of runs that
follow each other, so that what else happens on the machine meets both."""
import argparse
import json
import os
import statistics
import subprocess
import sys

LOOP = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
if sys.argv[2] != "free": os.sched_setaffinity(0, {int(sys.argv[2])})
print("runs", flush=True)
parent = os.getppid()
while time.monotonic() < end and os.getppid() == parent:
    for _ in range(100000): pass
"""
LOOP_SECONDS = 60

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--bench", default="build/release/bench/model_bench")
parser.add_argument("--before")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--prompt", type=int, default=256)
parser.add_argument("--decode", type=int, default=64)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
a = parser.parse_args()

cores = sorted(os.sched_getaffinity(0))
taken = cores[:len(cores) // 2]
if not taken:
    sys.exit("shared_cores.py: needs two processors")


def speeds(program):
    out = subprocess.run([program, a.model, "--threads", str(a.threads), "--repeat", "1", "--prompt", str(a.prompt),
                          "--decode", str(a.decode)],
                         check=True, capture_output=True, text=True, timeout=LOOP_SECONDS).stdout
    row = json.loads(out)
    return {kind: row[kind + "_tokens_per_second"][0] for kind in ("prefill", "decode")}


def beside(load, program):
    places = {"alone": [], "pinned": taken, "free": ["free"] * len(taken)}[load]
    loops = [subprocess.Popen([sys.executable, "-c", LOOP, str(LOOP_SECONDS), str(place)], stdout=subprocess.PIPE)
             for place in places]
    try:
        for loop in loops:
            loop.stdout.readline()
        return speeds(program)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


LOADS = ("alone", "pinned", "free")
programs = {"now": a.bench} | ({"before": a.before} if a.before else {})
rows = {(who, load): [] for who in programs for load in LOADS}
for _ in range(a.rounds):
    for load in LOADS:
        for who, program in programs.items():
            rows[who, load].append(beside(load, program))

result = {"bench": "shared_cores", "model": a.model, "threads": a.threads, "cores": len(cores), "taken": len(taken),
          "rounds": a.rounds}
for kind in ("prefill", "decode"):
    rate = {key: [r[kind] for r in value] for key, value in rows.items()}
    result[kind] = {who: {load: round(statistics.median(rate[who, load]), 1) for load in LOADS} for who in programs}
    for load in LOADS[1:]:
        for who in programs:
            result[kind][who][f"kept_{load}"] = round(statistics.median(
                x / alone for x, alone in zip(rate[who, load], rate[who, "alone"])), 3)
    if a.before:
        result[kind]["against_before"] = {load: round(statistics.median(
            x / y for x, y in zip(rate["now", load], rate["before", load])), 3) for load in LOADS}
print(json.dumps(result, indent=1))
