"""Arguments, exit codes and shapes of answers: what scripts rely on."""
import hashlib
import json
import os
import re
import shutil
import subprocess

import pytest

import safetensors_file
from program import GOLDEN, ROOT

COMMANDS = ["run", "serve", "inspect", "doctor", "generate", "logits", "tokenize", "detokenize", "render", "dump",
            "perplexity", "bytes"]


def test_help_lists_every_command(sixfold):
    answer = sixfold("--help")
    assert answer.code == 0 and answer.err == ""
    for command in COMMANDS:
        assert f"\n  {command} " in answer.out
    assert sixfold().code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_examples(sixfold, command):
    answer = sixfold(command, "--help")
    assert answer.code == 0 and answer.err == ""
    assert answer.out.startswith(f"usage: sixfold {command}")
    assert "Examples:\n" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 120


def test_version_tells_commit_build_mpi_and_instructions(sixfold):
    answer = sixfold("--version")
    first, *rest = answer.out.splitlines()
    assert answer.code == 0 and re.fullmatch(r"sixfold \d+\.\d+\.\d+", first)
    told = {line.split(":")[0]: line.split(":", 1)[1].strip() for line in rest}
    assert list(told) == ["commit", "build", "compiler", "MPI", "ISA"] and all(told.values())
    assert re.fullmatch(r"[0-9a-f]{12}(, changed)?|unknown", told["commit"])
    doctor = sixfold("doctor", "--json").json()
    assert doctor["version"] == first.split()[1]
    assert [doctor["commit"], doctor["build"], doctor["compiler"], doctor["mpi"] or "not built in", doctor["isa"]] == \
        [told[key] for key in ("commit", "build", "compiler", "MPI", "ISA")]


@pytest.mark.parametrize("git", ["a clone", "an unpacked archive", "inside of another repository"])
def test_the_commit_is_of_these_sources_or_unknown(tmp_path, git):
    source, header = tmp_path / "source", tmp_path / "commit.h"
    source.mkdir()

    def run(*command):
        environment = os.environ | {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
                                    "GIT_COMMITTER_EMAIL": "a@b", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    def commit():
        run("cmake", f"-DSOURCE={source}", f"-DOUTPUT={header}", "-P", ROOT / "cmake" / "commit.cmake")
        return re.search('"(.*)"', header.read_text()).group(1)
    if git != "an unpacked archive":
        top = source if git == "a clone" else tmp_path
        (source / "a").write_text("1")
        run("git", "-C", top, "init", "-q")
        run("git", "-C", top, "add", "source/a" if top != source else "a")
        run("git", "-C", top, "commit", "-qm", "one")
    if git != "a clone":
        assert commit() == "unknown"
        return
    head = run("git", "-C", source, "rev-parse", "--short=12", "HEAD")
    assert commit() == head
    made = header.stat().st_mtime_ns
    assert commit() == head and header.stat().st_mtime_ns == made
    (source / "a").write_text("2")
    assert commit() == head + ", changed"


EXIT_CODES = [
    (2, ["no-such-command"], "unknown command"),
    (2, ["genrate"], "did you mean 'generate'"),
    (2, ["--port", "1"], "command"),
    (2, ["logits", "TINY", "--no-such-flag"], "unknown option --no-such-flag"),
    (2, ["logits", "TINY", "--tokens", "1,2"], "--output"),
    (2, ["logits", "TINY", "--output", "OUT"], "--tokens"),
    (2, ["logits", "TINY", "--tokens", "", "--output", "OUT"], "--tokens"),
    (2, ["logits", "TINY", "--tokens", "1,x", "--output", "OUT"], "'x'"),
    (2, ["logits", "TINY", "--tokens", "-1", "--output", "OUT"], "'-1'"),
    (2, ["logits", "TINY", "--tokens", "1,99999999", "--output", "OUT"], "99999999"),
    (2, ["logits", "TINY", "--tokens", "1", "--output", "/no/such/folder/x"], "/no/such/folder/x"),
    (2, ["logits", "TINY", "--tokens", "1", "--output", "OUT", "--attention-chunk", "100"], "power of two"),
    (2, ["logits", "TINY", "--tokens", "1", "--output", "OUT", "--dtype", "f17"], "bf16"),
    (2, ["logits", "TINY", "--tokens", "1", "--output", "OUT", "--isa", "sse"], "avx2"),
    (2, ["logits", "TINY", "--tokens", "1", "--output", "OUT", "--threads", "0"], "1 to 1024"),
    (2, ["logits"], "MODEL is missing"),
    (2, ["generate", "TINY"], "--prompt"),
    (2, ["generate", "TINY", "--prompt", "x", "--prompt-tokens", "1"], "exclude"),
    (2, ["generate", "TINY", "--prompt", "x"], "tokenizer"),
    (2, ["generate", "TINY", "--prompt-tokens", "1", "--top-p", "0"], "top_p"),
    (2, ["generate", "TINY", "--prompt-tokens", "1", "--temperature", "9"], "0 to 2"),
    (2, ["generate", "TINY", "--prompt-tokens", "1", "--stop", "x"], "tokenizer"),
    (2, ["generate", "TINY", "--prompt-tokens", "1", "--max-model-len", "1"], ""),
    (2, ["generate", "TINY", "--prompt-tokens", "1", "--logit-bias", "nonsense"], "ID=X"),
    (2, ["dump", "TINY"], "missing"),
    (2, ["dump", "TINY", "model.norm.weigth", "--output", "OUT"], "'model.norm.weight'"),
    (2, ["inspect", "TINY", "more"], "unexpected argument 'more'"),
    (2, ["perplexity", "TINY"], "missing"),
    (3, ["inspect", "/no/such/model.gguf"], "/no/such/model.gguf"),
    (3, ["generate", "/no/such/model", "--prompt-tokens", "1"], "/no/such/model"),
    (3, ["logits", "GOLDEN/quant/Q4_1.gguf", "--tokens", "1", "--output", "OUT"], "Q4_1.gguf"),
    (3, ["tokenize", "TINY"], "no tokenizer"),
    (3, ["run", "TINY", "hello"], "no tokenizer"),
    (3, ["perplexity", "TINY", "/no/such/text"], ""),
    (4, ["generate", "TINY", "--prompt-tokens", "1", "--kv-cache-memory", "60T"], "kv-cache-memory"),
]


@pytest.mark.parametrize("code, arguments, said", EXIT_CODES, ids=[" ".join(row[1])[:60] for row in EXIT_CODES])
def test_exit_codes(sixfold, tiny, tmp_path, code, arguments, said):
    names = {"TINY": str(tiny), "OUT": str(tmp_path / "out")}
    answer = sixfold(*[names.get(word, word).replace("GOLDEN", str(GOLDEN)) for word in arguments])
    assert answer.code == code, answer.err
    assert said in answer.err
    assert answer.out == ""
    assert answer.err.count("\n") <= 3
    assert not (tmp_path / "out").exists()


def test_isa_above_the_machine_is_refused_by_name(sixfold, tiny, tmp_path, isas):
    names = ["scalar", "avx2", "avx512", "amx"]
    for isa in names[len(isas):]:
        answer = sixfold("logits", tiny, "--tokens", "1", "--output", tmp_path / "x", "--isa", isa)
        assert answer.code == 2 and isa in answer.err and isas[-1] in answer.err


def test_generate_json_is_all_of_stdout(sixfold, tiny):
    answer = sixfold("generate", tiny, "--prompt-tokens", "1,2,3", "--max-tokens", 4, "--temperature", 0,
                     "--ignore-eos", "--json")
    assert answer.out.count("\n") == 1
    assert {"token_ids", "text", "finish_reason"} <= set(answer.json())
    assert len(answer.json()["token_ids"]) == 4


def test_generate_n_answers_with_logprobs(sixfold, tiny):
    answer = sixfold("generate", tiny, "--prompt-tokens", "1,2,3", "--max-tokens", 5, "--temperature", 1, "--seed", 3,
                     "--n", 3, "--logprobs", 2, "--ignore-eos", "--json").json()
    assert len(answer["choices"]) == 3 and answer["seed"] == 3
    assert answer["choices"][0]["token_ids"] == answer["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in answer["choices"]}) > 1
    for choice in answer["choices"]:
        assert [entry["token_id"] for entry in choice["logprobs"]] == choice["token_ids"]
        for entry in choice["logprobs"]:
            assert entry["logprob"] <= 0 and len(entry["top"]) == 2
            assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"]


def test_generate_ends_at_a_stop_token(sixfold, tiny):
    free = sixfold("generate", tiny, "--prompt-tokens", "1,2,3", "--max-tokens", 8, "--ignore-eos", "--json").json()
    stop = free["token_ids"][3]
    ended = sixfold("generate", tiny, "--prompt-tokens", "1,2,3", "--max-tokens", 8, "--ignore-eos", "--json",
                    "--stop-token-ids", stop).json()
    assert ended["finish_reason"] == "stop"
    assert ended["token_ids"] == free["token_ids"][: free["token_ids"].index(stop) + 1]


def test_logits_to_stdout_and_in_json(sixfold, tiny, tmp_path):
    file = tmp_path / "l.safetensors"
    sixfold("logits", tiny, "--tokens", "1, 2,3", "--output", file)
    piped = sixfold("logits", tiny, "--tokens", "1,2,3", "--output", "/dev/stdout", "--quiet")
    assert piped.code == 0 and piped.bytes == file.read_bytes()
    answer = sixfold("logits", tiny, "--tokens", "1,2,3", "--output", file, "--json").json()
    assert answer["tokens"] == 3
    assert os.listdir(tmp_path) == ["l.safetensors"]


def tree_hash(path):
    """The tree of src/weights/weights_hash.h over a safetensors file, by hashlib."""
    piece = 4 << 20
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = {name: entry for name, entry in json.loads(raw[8:8 + length]).items() if name != "__metadata__"}
    number = lambda n: n.to_bytes(8, "little")
    sized = lambda text: number(len(text)) + text
    digest = lambda data: hashlib.sha256(data).digest()
    root = b"\2" + number(len(header))
    for name, entry in sorted(header.items(), key=lambda item: item[0].encode()):
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        pieces = b"".join(digest(b"\0" + raw[at:min(at + piece, end)]) for at in range(begin, end, piece))
        shape = number(len(entry["shape"])) + b"".join(map(number, entry["shape"]))
        root += sized(name.encode()) + sized(entry["dtype"].encode()) + shape + digest(b"\1" + number(end - begin) + pieces)
    return digest(root).hex()[:32]


def test_fingerprints_cover_every_byte_and_are_cached(sixfold, tmp_path):
    def prints(folder):
        answer = sixfold("inspect", folder, "--json", env={"XDG_CACHE_HOME": str(tmp_path / "cache")}).json()
        return answer["weights_fingerprint"], answer["fingerprint"]

    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(GOLDEN / "llama_gqa", first)
    weights, whole = prints(first)
    assert weights == tree_hash(first / "model.safetensors")
    shutil.copytree(first, second)
    assert prints(second) == (weights, whole)  # wherever it lies
    file = second / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    os.utime(file, (1e9, 1e9))
    changed = prints(second)
    assert changed[0] == tree_hash(file) != weights and changed[1] != whole
    entries = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/sixfold/hashes").iterdir()}
    assert entries and prints(second) == changed  # now from the cache
    assert entries == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache/sixfold/hashes").iterdir()}
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)  # and not from the cache, for the time of change is another
    assert prints(second) == (weights, whole)
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    assert prints(second)[0] == weights and prints(second)[1] != whole


def test_inspect_of_a_model_a_quantised_file_and_a_file_of_tensors(sixfold, tiny):
    model = sixfold("inspect", tiny, "--json").json()
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["model"]["layers"] > 0 and model["model"]["kv_bytes_per_token"] > 0
    assert sum(kind["bytes"] for kind in model["by_kind"].values()) == model["total"]["bytes"]
    assert {"embedding", "attention", "ffn", "norm"} <= set(model["by_kind"])
    assert len(model["weights_fingerprint"]) == 32
    quantised = sixfold("inspect", GOLDEN / "quant" / "Q5_K.gguf", "--json").json()
    assert quantised["model"] is None and quantised["not_a_model"]
    assert "Q5_K" in quantised["by_dtype"]
    plain = sixfold("inspect", GOLDEN / "quant" / "Q5_K.expected.safetensors", "--json").json()
    assert plain["format"] == "safetensors"
    assert {t["name"] for t in plain["tensors"]} == {t["name"] for t in quantised["tensors"]}
    for path in (tiny, GOLDEN / "quant" / "Q5_K.gguf"):
        answer = sixfold("inspect", path)
        assert answer.code == 0 and answer.err == "" and "parameters" in answer.out


def test_inspect_lists_config_fields_that_no_family_knows(sixfold, tiny, tmp_path):
    for file in ("model.safetensors", "config.json"):
        (tmp_path / file).write_bytes((tiny / file).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"frobnication": 3}))
    assert sixfold("inspect", tmp_path, "--json").json()["model"]["unknown_fields"] == ["frobnication"]
    assert "frobnication" in sixfold("inspect", tmp_path).out


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_dump_gives_the_bits_of_the_gguf_package(sixfold, tmp_path, kind):
    expected = safetensors_file.read(GOLDEN / "quant" / f"{kind}.expected.safetensors")
    for name, tensor in expected.items():
        output = tmp_path / "t.safetensors"
        answer = sixfold("dump", GOLDEN / "quant" / f"{kind}.gguf", name, "--output", output)
        assert answer.code == 0, answer.err
        dumped = safetensors_file.read(output)
        assert list(dumped) == [name]
        assert dumped[name].dtype == "F32" and dumped[name].shape == tensor.shape
        assert dumped[name].data == tensor.data


def test_a_closed_stdout_and_a_full_disk(sixfold, tiny):
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = sixfold.start("inspect", tiny, "--json", stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and err == b""
    with open("/dev/full", "wb") as full:
        process = sixfold.start("inspect", tiny, stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and b"stdout" in err


def test_doctor(sixfold):
    answer = sixfold("doctor", "--json", "--port", 0).json()
    names = {check["check"] for check in answer["checks"]}
    assert {"cores", "CPU quota", "other load", "instructions", "memory", "huge pages", "open files", "MPI",
            "libraries"} <= names
    for check in answer["checks"]:
        assert check["ok"] or check["advice"]
    text = sixfold("doctor")
    assert text.code == 0 and text.out.startswith(sixfold("--version").out)
    for name in names:
        assert f"  {name} " in text.out


def test_doctor_and_threads_follow_the_affinity(sixfold, tiny):
    cores = sorted(os.sched_getaffinity(0))
    limits = sixfold("doctor", "--json", preexec=lambda: os.sched_setaffinity(0, cores[:1])).json()["limits"]
    assert limits["cores_allowed"] == limits["cores_usable"] == 1
    assert limits["cores_present"] >= len(cores)
    assert 0 <= limits["other_load_cores"] <= 1 and limits["memory_available_bytes"] > 0
    answer = sixfold("generate", tiny, "--prompt-tokens", "1", "--max-tokens", 1,
                     preexec=lambda: os.sched_setaffinity(0, cores[:1]))
    assert answer.code == 0 and ", 1 thread," in answer.err
