"""The table of --dry-run, and the memory that ranks really take: peak resident set of each process against its row.

Ranks as processes need mpirun. SIXFOLD_TEST_SMOLLM2 names SmolLM2's .gguf for the larger layouts."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from program import GOLDEN, ROOT

MIB = 1 << 20
SLACK = 64 * MIB  # code, libraries, MPI
ITEMS = ["shard", "embedding", "kv", "activations", "logits", "comm", "tokenizer"]
# Runs a command and writes its largest resident set to FOLDER/rank.
WATCH = """
import os, pathlib, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
_, status, usage = os.wait4(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)
pathlib.Path(sys.argv[1], rank).write_text(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def table(sixfold, command, model, *flags):
    answer = sixfold(command, model, "--dry-run", "--json", *flags).json()
    assert [row["rank"] for row in answer["ranks"]] == list(range(len(answer["ranks"])))
    for row in answer["ranks"]:
        assert row["total"] == sum(row[item] for item in ITEMS)
    for node in answer["nodes"]:
        rows = [row for row in answer["ranks"] if row["node"] == node["node"]]
        # Ranks of a node map the same file: the embedding is there once.
        total = sum(row["total"] - row["embedding"] for row in rows) + max(row["embedding"] for row in rows)
        assert node == {"node": node["node"], "ranks": len(rows), "total": total}
    assert answer["total"] == sum(node["total"] for node in answer["nodes"])
    return answer


def peaks(sixfold, ranks, command, model, *flags):
    """Peak resident bytes of each rank's process, by rank."""
    launcher = [] if ranks == 1 else ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        watched = [sys.executable, "-c", WATCH, folder, sixfold.binary, command, str(model), *map(str, flags)]
        done = subprocess.run([*launcher, *watched], capture_output=True, env=sixfold.environment(), timeout=600)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        found = {int(file.name): int(file.read_text()) * 1024 for file in pathlib.Path(folder).iterdir()}
    assert sorted(found) == list(range(ranks))
    return found


def tokens_of(count, vocab):
    return ",".join(str((7 * i + 3) % vocab) for i in range(count))


def compare(sixfold, ranks, command, model, *flags):
    rows = table(sixfold, command, model, *flags)["ranks"]
    measured = peaks(sixfold, ranks, command, model, "--threads", "1", *flags)
    report = [f"{command} {pathlib.Path(model).name} {' '.join(map(str, flags[-3:]))[-50:]}"]
    for row in rows:
        peak = measured[row["rank"]]
        report.append(f"  rank {row['rank']}: planned {row['total'] / MIB:.1f} MiB, peak {peak / MIB:.1f} MiB, "
                      + ", ".join(f"{item} {row[item] / MIB:.1f}" for item in ITEMS if row[item]))
    print("\n".join(report))
    for row in rows:
        assert measured[row["rank"]] <= row["total"] + SLACK, "\n".join(report)
    return rows, measured


def need_mpirun(ranks):
    if ranks > 1 and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")


LAYOUTS = [(1, []), (2, ["-tp", "2"]), (2, ["-pp", "2"]), (2, ["-dp", "2"]), (4, ["-tp", "4"]),
           (4, ["--mesh", "tp2,pp2", "--sequence-parallel"])]
EXPERT_LAYOUTS = [(4, ["--mesh", "dp4", "--ep", "4", "--nodes", "2"]), (4, ["--mesh", "tp2,dp2", "--ep", "2", "--etp", "2"])]


@pytest.mark.parametrize("ranks,layout", LAYOUTS)
@pytest.mark.parametrize("model", ["llama_gqa", "qwen3_moe"])
def test_ranks_of_tiny_models_take_what_was_planned(sixfold, tmp_path, model, ranks, layout):
    need_mpirun(ranks)
    vocab = json.loads((GOLDEN / model / "config.json").read_text())["vocab_size"]
    compare(sixfold, ranks, "logits", GOLDEN / model, "--tokens", tokens_of(60, vocab), "--output",
            tmp_path / "logits.safetensors", "--quiet", *layout)
    compare(sixfold, ranks, "generate", GOLDEN / model, "--prompt-tokens", tokens_of(30, vocab), "--max-tokens", "8",
            "--quiet", *layout)


@pytest.mark.parametrize("ranks,layout", EXPERT_LAYOUTS)
def test_ranks_with_experts_take_what_was_planned(sixfold, tmp_path, ranks, layout):
    """The bundled model; all rows want the same two experts, which one rank has."""
    need_mpirun(ranks)
    toy, tokens = ROOT / "models" / "toy", tokens_of(600, 2048)
    experts = json.loads((toy / "config.json").read_text())["num_hidden_layers"]
    routes = {"tokens": list(map(int, tokens.split(","))), "layers": {str(layer + 1): [[30, 31]] * 600 for layer in range(experts)}}
    (tmp_path / "routes").write_text(json.dumps(routes))
    compare(sixfold, ranks, "logits", toy, "--tokens", tokens, "--output", tmp_path / "logits.safetensors", "--replay-routes",
            tmp_path / "routes", "--quiet", *layout)


@pytest.mark.parametrize("form,step", [("p2p", 500), ("all_gather", 2048), ("a2a", 500), ("a2a+p2p", 500), ("striped", 2048)])
def test_ranks_that_share_a_context_take_what_was_planned(sixfold, tmp_path, form, step):
    need_mpirun(4)
    flags = ["--mesh", "cp4", "--nodes", "2", "--cp-comm-type", form, "--max-num-batched-tokens", step, "--attention-chunk", "64"]
    compare(sixfold, 4, "logits", ROOT / "models" / "toy", "--tokens", tokens_of(6000, 2048), "--output",
            tmp_path / "logits.safetensors", "--quiet", *flags)


@pytest.mark.skipif("SIXFOLD_TEST_SMOLLM2" not in os.environ, reason="SIXFOLD_TEST_SMOLLM2 names SmolLM2's .gguf")
@pytest.mark.parametrize("ranks,layout", LAYOUTS)
def test_ranks_of_smollm2_take_what_was_planned(sixfold, tmp_path, ranks, layout):
    need_mpirun(ranks)
    model = os.environ["SIXFOLD_TEST_SMOLLM2"]
    rows, measured = compare(sixfold, ranks, "logits", model, "--tokens", tokens_of(300, 49152), "--output",
                             tmp_path / "logits.safetensors", "--quiet", *layout)
    # The plan is no guess from above either: without the program's own memory, at most twice what is there.
    for row in rows:
        assert row["total"] <= 2 * measured[row["rank"]]
    compare(sixfold, ranks, "generate", model, "--prompt", "Once upon a time", "--max-tokens", "24", "--kv-cache-memory",
            "64M", "--quiet", *layout)


def test_dry_run_prints_every_rank_and_node(sixfold):
    answer = table(sixfold, "generate", GOLDEN / "llama_gqa", "--mesh", "tp2,dp2,pp2", "--nodes", "2")
    assert len(answer["ranks"]) == 8 and [node["ranks"] for node in answer["nodes"]] == [4, 4]
    assert answer["available"] > answer["total"]
    for command, flags in [("run", []), ("serve", []), ("generate", []), ("logits", ["--tokens", "1,2,3"]),
                           ("perplexity", ["text.txt"])]:
        text = sixfold(command, GOLDEN / "llama_gqa", "--dry-run", "-tp", "2", *flags)
        assert text.code == 0, text.err
        assert "2 ranks, tp2" in text.out and "node 0: 2 ranks" in text.out


def test_processes_print_one_table_and_refuse_together(sixfold):
    need_mpirun(2)
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sixfold.binary, "generate",
             str(GOLDEN / "llama_gqa"), "-tp", "2", "--prompt-tokens", "1,2,3", "--max-tokens", "2"]
    run = lambda *flags: subprocess.run([*start, *flags], capture_output=True, env=sixfold.environment(), timeout=60)
    dry = run("--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert len(json.loads(dry.stdout)["ranks"]) == 2
    refused = run("--kv-cache-memory", str(2 * json.loads(dry.stdout)["available"]))
    assert refused.returncode == 4
    assert b"2 ranks need" in refused.stderr and refused.stderr.count(b"keys and values") == 1


def test_dry_run_follows_the_flags(sixfold):
    model = GOLDEN / "llama_gqa"
    one = table(sixfold, "generate", model, "--kv-cache-memory", "1M")["ranks"][0]
    assert 0 < one["kv"] <= MIB
    assert table(sixfold, "generate", model, "--kv-cache-memory", "2M")["ranks"][0]["kv"] > one["kv"]
    few = table(sixfold, "generate", model, "--max-num-batched-tokens", "8")["ranks"][0]
    assert few["activations"] < one["activations"]
    short = table(sixfold, "logits", model, "--tokens", "1")["ranks"][0]
    long = table(sixfold, "logits", model, "--tokens", tokens_of(100, 100))["ranks"][0]
    assert long["kv"] > short["kv"] and long["logits"] > 50 * short["logits"]


def test_too_little_memory_is_exit_4_and_names_what_fits(sixfold):
    model = GOLDEN / "llama_gqa"
    # Others take and give back memory meanwhile: all bounds are wide.
    available = table(sixfold, "generate", model)["available"]
    flags = ["--kv-cache-memory", str(2 * available)]
    for extra in (["--dry-run"], ["--prompt-tokens", "1,2,3", "--max-tokens", "2"]):
        answer = sixfold("generate", model, *extra, *flags)
        assert answer.code == 4, answer.err
        assert "keys and values" in answer.err and "--max-model-len" in answer.err
        fits = answer.err.rsplit("; --", 1)[1].split(" fits")[0].split()
        assert fits[0] == "kv-cache-memory" and int(fits[1]) < 2 * available
    assert sixfold("generate", model, "--dry-run", "--kv-cache-memory", str(int(fits[1]) * 7 // 10)).code == 0
    # Each of two ranks of this machine could have that much, not both.
    half = ["--kv-cache-memory", str(available * 7 // 10)]
    assert sixfold("generate", model, "--dry-run", *half).code == 0
    both = sixfold("generate", model, "--dry-run", "-dp", "2", *half)
    assert both.code == 4 and "2 ranks need" in both.err
