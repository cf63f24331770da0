#!/usr/bin/env python3
"""Writes sampler_vectors.txt: what the sampler must draw, computed with numpy alone.

Independent of the C++ code: Philox, penalties, filters and the draw are written again from the papers and from the
order of operations in engine/sampler.h. exp is numpy's, so a case whose draw or cut would fall closer than 1e-5 to a
boundary is skipped.  Usage: sampler_vectors.py > sampler_vectors.txt   (numpy 1.24 or later)
"""
import numpy as np

F = np.float32
MARGIN = 1e-5


def philox_uniform(seed, choice, position, purpose=0):
    c = [position, choice, purpose, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (((c[0] << 32) | c[1]) >> 11) * 2.0**-53


def adjust(case):
    l = case["logits"].copy()
    for t, b in case["logit_bias"].items():
        l[t] += F(b)
    seen = sorted(set(case["prompt"]) | set(case["answer"]))
    r = F(case["repetition_penalty"])
    l[seen] = np.where(l[seen] > 0, l[seen] / r, l[seen] * r)
    counts = np.bincount(case["answer"], minlength=len(l)).astype(F)
    l -= F(case["frequency_penalty"]) * counts
    l -= F(case["presence_penalty"]) * (counts > 0).astype(F)
    if len(case["answer"]) < case["min_tokens"]:
        l[case["end_ids"]] = -np.inf
    return l


class Close(Exception):
    """A cut or a draw is too close to a boundary to be the same with another exp."""


def distribution(case):
    """Ids that may be drawn and their probabilities, in the order of the draw."""
    l = adjust(case).astype(np.float64)
    w = np.exp((l - l.max()) / case["temperature"])
    ids = np.arange(len(l))
    cut_k = 0 < case["top_k"] < len(l)
    if cut_k or case["top_p"] < 1 or case["min_p"] > 0:
        ids = np.lexsort((ids, -l))
        if cut_k:
            ids = ids[: case["top_k"]]
        keep = np.ones(len(ids), bool)
        if case["top_p"] < 1:
            p = w[ids] / w[ids].sum()
            before = np.cumsum(p) - p
            if np.abs(before - case["top_p"]).min() < MARGIN:
                raise Close
            keep &= before < case["top_p"]
        if case["min_p"] > 0:
            if np.abs(w[ids] - case["min_p"]).min() < MARGIN:
                raise Close
            keep &= w[ids] >= case["min_p"]
        ids = ids[keep]
    return ids, w[ids] / w[ids].sum()


def draw(case, seed):
    if case["temperature"] == 0:
        return int(np.argmax(adjust(case)))
    ids, p = distribution(case)
    u = philox_uniform(seed, case["choice"], len(case["prompt"]) + len(case["answer"]))
    sums = np.cumsum(p)
    if np.abs(sums[:-1] - u).min(initial=1) < MARGIN:
        raise Close
    return int(ids[min(np.searchsorted(sums, u, side="right"), len(ids) - 1)])


def random_case(rng, number):
    vocab = int(rng.integers(5, 60))
    logits = rng.normal(0, rng.choice([1, 3, 8]), vocab).astype(F)
    if number % 6 == 0:
        logits = np.round(logits)
    pick = lambda on, off: on if rng.random() < 0.5 else off
    tokens = lambda n: [int(t) for t in rng.integers(0, vocab, n)]
    return {
        "logits": logits,
        "prompt": tokens(rng.integers(1, 12)),
        "answer": tokens(rng.integers(0, 12)),
        "end_ids": tokens(2),
        "choice": int(rng.integers(0, 4)),
        "temperature": 0 if number % 8 == 7 else round(float(rng.uniform(0.1, 2)), 3),
        "top_k": pick(int(rng.integers(1, vocab + 3)), 0),
        "top_p": pick(round(float(rng.uniform(0.05, 0.99)), 3), 1),
        "min_p": pick(round(float(rng.uniform(0, 0.4)), 3), 0),
        "repetition_penalty": pick(round(float(rng.uniform(0.5, 2)), 3), 1),
        "presence_penalty": pick(round(float(rng.uniform(-2, 2)), 3), 0),
        "frequency_penalty": pick(round(float(rng.uniform(-2, 2)), 3), 0),
        "min_tokens": pick(6, 0),
        "logit_bias": {t: round(float(rng.uniform(-10, 10)), 2) for t in set(tokens(rng.integers(0, 3)))},
    }


def line(key, values):
    print(key, *values)


def write(number, case):
    tokens = [draw(case, seed) for seed in range(16)]
    x = case["logits"].astype(np.float64)
    lp = x - x.max() - np.log(np.exp(x - x.max()).sum())
    top = np.lexsort((np.arange(len(x)), -x))[: min(5, len(x))]
    print(f"case {number}")
    line("logits", (repr(float(v)) for v in case["logits"]))
    for key in ("prompt", "answer", "end_ids"):
        line(key, case[key])
    for key in ("choice", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                "frequency_penalty", "min_tokens"):
        line(key, [case[key]])
    line("logit_bias", (v for item in sorted(case["logit_bias"].items()) for v in item))
    line("tokens", tokens)
    line("logprob", [f"{lp[tokens[0]]:.9g}"])
    line("top", (v for t in top for v in (t, f"{lp[t]:.9g}")))


def main():
    print("# Written by sampler_vectors.py; do not edit.")
    rng = np.random.default_rng(20240611)
    written = 0
    for number in range(80):
        case = random_case(rng, number)
        try:
            if written < 40:
                write(written, case)
                written += 1
        except Close:
            pass


main()
