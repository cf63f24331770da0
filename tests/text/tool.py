"""Drives the program under test: `sixfold`, or the text module's own text_tool. SIXFOLD_BIN says which."""

import json
import os
import pathlib
import subprocess

import packages

DEFAULTS = ["build/release/sixfold", "build/release/src/text/text_tool", "build/dev/src/text/text_tool"]


def binary():
    named = os.environ.get("SIXFOLD_BIN")
    if named:
        return named
    for each in DEFAULTS:
        if (packages.ROOT / each).exists():
            return str(packages.ROOT / each)
    raise RuntimeError("no program to test: set SIXFOLD_BIN")


def is_text_tool():
    return pathlib.Path(binary()).name == "text_tool"


def text_tool():
    """The text module's own tool beside the program under test; it takes vocabularies as JSON and streams given ids."""
    named = pathlib.Path(binary()).resolve()
    return named if is_text_tool() else named.parent / "src" / "text" / "text_tool"


def run(*args, stdin=b"", check=True):
    done = subprocess.run([binary(), *map(str, args)], input=stdin, capture_output=True, timeout=300)
    if check and done.returncode != 0:
        raise AssertionError(f"{args}: exit {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return done


def jsonl(*args, rows):
    stdin = "".join(json.dumps(row) + "\n" for row in rows).encode()
    out = run(*args, "--jsonl", stdin=stdin).stdout.decode()
    answers = [json.loads(line) for line in out.split("\n") if line]
    assert len(answers) == len(rows)
    return answers


def tokenize(model, texts, special=True):
    flags = [] if special else ["--no-special"]
    return [answer["ids"] for answer in jsonl("tokenize", model, *flags, rows=texts)]


def detokenize(model, id_lists):
    return [a["text"] for a in jsonl("detokenize", model, rows=[{"ids": ids} for ids in id_lists])]
