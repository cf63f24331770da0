#!/usr/bin/env python3
"""Speed of one model file against llama.cpp's llama-bench, alternating in one run; prints JSON.
usage: against_peer.py MODEL.gguf --peer LLAMA_BENCH [--bench MODEL_BENCH] [--rounds 3] [--prompt 512] [--decode 128]
A ratio is the median of ours over the median of the peer's."""
import argparse
import json
import re
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--peer", required=True)
parser.add_argument("--bench", default="build/release/bench/model_bench")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--decode", type=int, default=128)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--dtype", default="bf16")
a = parser.parse_args()


def ours():
    out = subprocess.run([a.bench, a.model, "--threads", str(a.threads), "--dtype", a.dtype, "--repeat", "1",
                          "--prompt", str(a.prompt), "--decode", str(a.decode)],
                         check=True, capture_output=True, text=True, timeout=1200).stdout
    row = json.loads(out)
    return row["prefill_tokens_per_second"][0], row["decode_tokens_per_second"][0]


def peer():
    out = subprocess.run([a.peer, "-m", a.model, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.decode), "-r", "1",
                          "-o", "json"], check=True, capture_output=True, text=True, timeout=1200).stdout
    rows = json.loads(re.search(r"\[.*\]", out, re.S).group(0))
    by_kind = {"prefill" if row["n_gen"] == 0 else "decode": row["avg_ts"] for row in rows}
    return by_kind["prefill"], by_kind["decode"]


rates = {"ours": [], "peer": []}
for _ in range(a.rounds):
    rates["ours"].append(ours())
    rates["peer"].append(peer())
result = {"bench": "against_peer", "model": a.model, "threads": a.threads, "dtype": a.dtype, "rounds": a.rounds}
for i, kind in enumerate(("prefill", "decode")):
    for who in rates:
        result[f"{kind}_{who}"] = [round(r[i], 1) for r in rates[who]]
    result[f"{kind}_ratio"] = round(statistics.median(r[i] for r in rates["ours"]) /
                                    statistics.median(r[i] for r in rates["peer"]), 2)
print(json.dumps(result))
