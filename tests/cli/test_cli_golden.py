"""Logits and greedy tokens of every golden model against what transformers computed, through the program itself."""
import pytest

import safetensors_file
from program import GOLDEN


def models():
    for expected in sorted(GOLDEN.glob("*/expected.safetensors")):
        folder = expected.parent
        if (folder / "config.json").exists():
            yield pytest.param(folder, expected, id=folder.name)
        for gguf in sorted(folder.glob("*.gguf")):
            yield pytest.param(gguf, expected, id=f"{folder.name}/{gguf.name}")


def test_there_are_models():
    assert len(list(models())) >= 35


@pytest.mark.parametrize("model, expected", list(models()))
def test_logits_are_those_of_transformers(sixfold, tmp_path, model, expected):
    golden = safetensors_file.read(expected)
    tokens = ",".join(map(str, golden["tokens"].values()))
    output = tmp_path / "logits.safetensors"
    answer = sixfold("logits", model, "--tokens", tokens, "--output", output, "--dtype", "f32")
    assert answer.code == 0, answer.err
    assert answer.out == ""
    logits = safetensors_file.read(output)["logits"]
    assert logits.dtype == "F32" and logits.shape == golden["logits"].shape
    assert safetensors_file.largest_difference(logits.values(), golden["logits"].values()) <= 1e-4


@pytest.mark.parametrize("model, expected", list(models()))
def test_greedy_tokens_are_those_of_transformers(sixfold, model, expected):
    golden = safetensors_file.read(expected)
    tokens = ",".join(map(str, golden["tokens"].values()))
    answer = sixfold("generate", model, "--prompt-tokens", tokens, "--max-tokens", 64, "--temperature", 0,
                     "--ignore-eos", "--dtype", "f32", "--json").json()
    assert answer["token_ids"] == list(golden["greedy"].values())
    assert answer["finish_reason"] == "length"
    assert answer["text"] == ""


@pytest.mark.parametrize("flags", [["--numerics", "fast"], ["--attention-chunk", 16], ["--reduction-leaves", 1],
                                   ["--reduction-leaves", 3]], ids=lambda flags: "=".join(map(str, flags)))
@pytest.mark.parametrize("name", ["llama_gqa", "mistral_window", "qwen3_moe", "qwen3_fp8"])
def test_other_orders_of_summation_are_as_close(sixfold, tmp_path, name, flags):
    golden = safetensors_file.read(GOLDEN / name / "expected.safetensors")
    tokens = ",".join(map(str, golden["tokens"].values()))
    output = tmp_path / "logits.safetensors"
    answer = sixfold("logits", GOLDEN / name, "--tokens", tokens, "--output", output, "--dtype", "f32", *flags)
    assert answer.code == 0, answer.err
    logits = safetensors_file.read(output)["logits"]
    assert safetensors_file.largest_difference(logits.values(), golden["logits"].values()) <= 1e-4


DENSE = ["llama_gqa", "llama_mqa", "llama_odd", "llama_bf16", "llama_head_dim", "mistral_window", "qwen2_tied", "qwen3",
         "qwen3_fp8"]


@pytest.mark.parametrize("name", DENSE)
def test_bf16_activations_move_logits_by_a_quarter_of_rms_at_most(sixfold, tmp_path, name):
    golden = safetensors_file.read(GOLDEN / name / "expected.safetensors")
    tokens = ",".join(map(str, golden["tokens"].values()))
    output = tmp_path / "logits.safetensors"
    answer = sixfold("logits", GOLDEN / name, "--tokens", tokens, "--output", output, "--dtype", "bf16")
    assert answer.code == 0, answer.err
    expected = golden["logits"].values()
    rms = (sum(value * value for value in expected) / len(expected)) ** 0.5
    moved = safetensors_file.largest_difference(safetensors_file.read(output)["logits"].values(), expected)
    assert 0 < moved <= 0.25 * rms


SAME_BITS = ["llama_gqa", "llama_odd", "llama_bf16", "mistral_window", "qwen3_fp8", "qwen3_moe", "olmoe",
             "deepseek_v3", "deepseek_v3_fp8", "llama_gguf_q32/model.gguf", "llama_gguf_k/model.gguf"]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("name", SAME_BITS)
def test_one_file_whatever_the_isa_the_chunks_and_the_threads(sixfold, tmp_path, isas, name, dtype):
    model = GOLDEN / name
    golden = safetensors_file.read((model if model.is_dir() else model.parent) / "expected.safetensors")
    tokens = ",".join(map(str, golden["tokens"].values()))

    def logits(*flags):
        output = tmp_path / "out.safetensors"
        answer = sixfold("logits", model, "--tokens", tokens, "--output", output, "--dtype", dtype, *flags)
        assert answer.code == 0, answer.err
        return output.read_bytes()

    reference = logits("--isa", "scalar", "--threads", 1)
    for isa in isas[1:]:
        assert logits("--isa", isa, "--threads", 2) == reference, isa
    for chunk in (1, 7, 64):
        assert logits("--max-num-batched-tokens", chunk) == reference, chunk
    assert logits("--threads", 3) == reference


def test_generate_gives_the_same_tokens_in_one_chunk_and_in_many(sixfold, tiny):
    def generate(*flags):
        prompt = ",".join(str(i % 50) for i in range(40))
        return sixfold("generate", tiny, "--prompt-tokens", prompt, "--temperature", 1, "--seed", 7, "--max-tokens", 16,
                       "--json", *flags).json()["token_ids"]
    assert generate() == generate("--max-num-batched-tokens", 3, "--threads", 1)
