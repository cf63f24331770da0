"""Damaged files: an exit code and the file's name, never a signal, and no memory for what a file merely claims."""
import json
import random
import resource
import struct

import pytest

import safetensors_file
from program import GOLDEN, limited


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text


def gguf(version=3, tensors=0, keys=0, body=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def tensor_record(name, dims, kind=0, offset=0):
    shape = struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
    return gguf_string(name) + shape + struct.pack("<IQ", kind, offset)


def safetensors(entries, data=b""):
    return safetensors_file.header_bytes(entries) + data


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LIES = {
    "empty.gguf": b"",
    "magic.gguf": b"GGUF",
    "ones.gguf": b"GGUF" + b"\xff" * 60,
    "version.gguf": gguf(version=99),
    "tensors.gguf": gguf(tensors=1 << 60),
    "keys.gguf": gguf(keys=1 << 60),
    "string.gguf": gguf(keys=1, body=struct.pack("<Q", 1 << 60) + b"key"),
    "array.gguf": gguf(keys=1, body=gguf_string(b"k") + struct.pack("<IIQ", 9, 4, 1 << 60)),
    "nested.gguf": gguf(keys=1, body=gguf_string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000),
    "dims.gguf": gguf(tensors=1, body=tensor_record(b"t", [1] * 9)),
    "overflow.gguf": gguf(tensors=1, body=tensor_record(b"t", [1 << 40, 1 << 40])),
    "far.gguf": gguf(tensors=1, body=tensor_record(b"t", [64], offset=1 << 50)) + b"\0" * 512,
    "unaligned.gguf": gguf(tensors=1, body=tensor_record(b"t", [8], offset=7)) + b"\0" * 512,
    "twice.gguf": gguf(tensors=2, body=tensor_record(b"t", [8]) + tensor_record(b"t", [8], offset=32)) + b"\0" * 512,
    "empty.safetensors": b"",
    "length.safetensors": struct.pack("<Q", 1 << 60) + b"{}",
    "json.safetensors": struct.pack("<Q", 8) + b"{\"a\": [ ",
    "deep.safetensors": struct.pack("<Q", 2000) + b"[" * 2000,
    "past.safetensors": safetensors({"t": entry([4], 0, 16)}, b"\0" * 8),
    "after.safetensors": safetensors({"t": entry([4], 0, 16)}, b"\0" * 24),
    "hole.safetensors": safetensors({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
    "overlap.safetensors": safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),
    "shape.safetensors": safetensors({"t": entry([5], 0, 16)}, b"\0" * 16),
    "huge.safetensors": safetensors({"t": entry([1 << 31, 1 << 31, 4], 0, 16)}, b"\0" * 16),
    "dtype.safetensors": safetensors({"t": entry([4], 0, 16, "F33")}, b"\0" * 16),
    "negative.safetensors": safetensors({"t": entry([-4], 0, 16)}, b"\0" * 16),
    "twice.safetensors": struct.pack("<Q", 120) + (b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                                                   b'"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
                                                   ).ljust(120) + b"\0" * 4,
}


@pytest.mark.parametrize("name", LIES)
def test_lying_files_are_refused_by_name(sixfold, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(LIES[name])
    for command in (["inspect", path], ["dump", path, "t", "--output", tmp_path / "out"], ["inspect", path, "--json"]):
        answer = sixfold(*command, preexec=limited(path))
        assert answer.code == 3, f"{command}: exit {answer.code} {answer.err}"
        assert name in answer.err and answer.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["llama_gqa/model.safetensors", "llama_gqa/model.gguf", "llama_gguf_k/model.gguf"])
def test_truncated_files(sixfold, tmp_path, source):
    whole = (GOLDEN / source).read_bytes()
    path = tmp_path / ("cut" + (GOLDEN / source).suffix)
    for length in [0, 3, 8, 20, 100, 1000, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        answer = sixfold("inspect", path, preexec=limited(path))
        assert answer.code == 3 and path.name in answer.err, f"{length}: exit {answer.code} {answer.err}"


@pytest.mark.parametrize("source", ["llama_gqa/model.safetensors", "llama_gqa/model.gguf"])
def test_flipped_bytes_of_a_header_never_end_in_a_signal(sixfold, tmp_path, source):
    whole = (GOLDEN / source).read_bytes()
    path = tmp_path / ("flipped" + (GOLDEN / source).suffix)
    dice = random.Random(source)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(0, 3000)] = dice.randrange(256)
        path.write_bytes(damaged)
        answer = sixfold("inspect", path, preexec=limited(path))
        assert answer.code in (0, 3), f"exit {answer.code} {answer.err}"


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 5000, "\xff", '{"architectures": 3}',
                                  '{"architectures": ["Nope"]}',
                                  '{"architectures": ["LlamaForCausalLM"], "hidden_size": 1e99}'])
def test_damaged_configs(sixfold, tiny, tmp_path, text):
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    answer = sixfold("logits", tmp_path, "--tokens", "1", "--output", tmp_path / "out")
    assert answer.code == 3 and answer.err.strip(), answer.err
    assert sixfold("inspect", tmp_path).code in (0, 3)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 5000, "\xff", '{"model": {"type": "BPE"}}', '{"model": 3}'])
def test_damaged_tokenizers(sixfold, tmp_path, text):
    (tmp_path / "tokenizer.json").write_bytes(text.encode("latin-1"))
    for command in ("tokenize", "detokenize"):
        answer = sixfold(command, tmp_path, stdin="1")
        assert answer.code == 3 and "tokenizer.json" in answer.err, answer.err


@pytest.mark.parametrize("change, said", [
    (lambda config: config | {"architectures": ["FrobnicatorForCausalLM"]}, "FrobnicatorForCausalLM"),
    (lambda config: config | {"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
    (lambda config: config | {"num_attention_heads": 0}, "num_attention_heads"),
    (lambda config: config | {"vocab_size": 10}, "embed_tokens"),
    (lambda config: config | {"intermediate_size": 1}, "mlp"),
    (lambda config: config | {"hidden_act": "gelu"}, "hidden_act"),
])
def test_configs_that_do_not_fit_are_refused_before_any_arithmetic(sixfold, tiny, tmp_path, change, said):
    (tmp_path / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(change(config)))
    answer = sixfold("logits", tmp_path, "--tokens", "1", "--output", tmp_path / "out", preexec=limited(tiny))
    assert answer.code == 3 and said in answer.err, f"exit {answer.code} {answer.err}"


def test_dump_needs_no_memory_for_the_tensor(sixfold, tmp_path):
    """Half a GiB of f16 would be 1 GiB of f32; both rows and one endless row go out in slices."""
    for shape in ([1 << 14, 1 << 14], [1 << 28]):
        path = tmp_path / "big.safetensors"
        size = 1 << 29
        with open(path, "wb") as file:
            file.write(safetensors_file.header_bytes({"t": entry(shape, 0, size, "F16")}))
            file.truncate(file.tell() + size)
        answer = sixfold("dump", path, "t", "--output", "/dev/null", preexec=limited(path))
        assert answer.code == 0, answer.err


def test_a_file_of_many_tensors_needs_little_memory(sixfold, tmp_path):
    path = tmp_path / "many.gguf"
    count = 200_000
    records = b"".join(tensor_record(b"blk.%d.weight" % i, [8], offset=32 * i) for i in range(count))
    head = gguf(tensors=count, body=records)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + b"\0" * (32 * count))
    answer = sixfold("inspect", path, "--json", preexec=limited(path))
    assert answer.code == 0, answer.err
    assert len(answer.json()["tensors"]) == count


def test_too_little_memory_is_exit_4(sixfold, tiny):
    limit = 256 << 20
    answer = sixfold("generate", tiny, "--prompt-tokens", "1", "--kv-cache-memory", "1G",
                     preexec=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert answer.code == 4 and "memory" in answer.err, f"exit {answer.code} {answer.err}"


def test_words_on_stdin_that_are_no_ids(sixfold, smollm2):
    for text, flags in (("1 x", []), ("{\"idz\": []}", ["--json"]), ("[1.5]\n", ["--jsonl"]), ("{\"ids\": [-1]}", [])):
        answer = sixfold("detokenize", smollm2, *flags, stdin=text)
        assert answer.code == 3 and "stdin" in answer.err and answer.out == ""
    for text in ("not json\n", "{}\n", "\"a\" \"b\"\n"):
        answer = sixfold("tokenize", smollm2, "--jsonl", stdin=text)
        assert answer.code == 3 and "line 1" in answer.err
