"""Commands that need a tokenizer, on the default model."""
import json
import math
import re

import pytest

import safetensors_file
from program import ROOT, limited

TEXTS = ["one", "two\nlines", "", "Grüße, 世界 🙂", " leading", "<|im_start|>user\nHi<|im_end|>", "\u0000\u0001",
         "\ufffd"]


def test_tokenize_and_back(sixfold, smollm2):
    lines = "".join(json.dumps(text) + "\n" for text in TEXTS)
    answer = sixfold("tokenize", smollm2, "--no-special", "--jsonl", stdin=lines, preexec=limited(smollm2))
    assert answer.code == 0, answer.err
    rows = [json.loads(line)["ids"] for line in answer.out.splitlines()]
    assert len(rows) == len(TEXTS) and rows[2] == []
    assert rows[5][0] == 1 and rows[5][-1] == 2  # specials in the text are recognised
    back = sixfold("detokenize", smollm2, "--jsonl", stdin=answer.out, preexec=limited(smollm2))
    assert [json.loads(line)["text"] for line in back.out.splitlines()] == TEXTS


def test_tokenize_one_text_in_three_forms(sixfold, smollm2):
    ids = sixfold("tokenize", smollm2, "--json", stdin="Hello, world").json()["ids"]
    assert sixfold("tokenize", smollm2, stdin="Hello, world").out.split() == [str(i) for i in ids]
    for given in (" ".join(map(str, ids)), json.dumps(ids), json.dumps({"ids": ids}), ",".join(map(str, ids)) + "\n"):
        assert sixfold("detokenize", smollm2, stdin=given).out == "Hello, world"
        assert sixfold("detokenize", smollm2, "--json", stdin=given).json() == {"text": "Hello, world"}


# The first byte that Python's strict decoder names, in text of several kinds of damage.
BROKEN = [b"a\xff\xc3b", b"\xc3", b"ab\xed\xa0\x80", "é".encode() + b"\xc0\xaf", b"x" * 5000 + b"\x80", b"\xf4\x90\x80\x80"]


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: data[-6:].hex())
def test_bytes_that_are_not_utf8_are_named_or_replaced(sixfold, smollm2, tmp_path, data):
    with pytest.raises(UnicodeDecodeError) as found:
        data.decode()
    named = f"byte {found.value.start} (0x{data[found.value.start]:02x}) is not UTF-8"
    refused = sixfold("tokenize", smollm2, stdin=data)
    assert refused.code == 3 and refused.out == "" and named in refused.err and "--lossy" in refused.err, refused.err
    repaired = sixfold("tokenize", smollm2, "--json", stdin=data.decode(errors="replace")).json()
    assert sixfold("tokenize", smollm2, "--lossy", "--json", stdin=data).json() == repaired
    file = tmp_path / "text"
    file.write_bytes(data)
    refused = sixfold("perplexity", smollm2, file)
    assert refused.code == 3 and named in refused.err and "--lossy" in refused.err, refused.err
    refused = sixfold("perplexity", smollm2, file, "--lossy")
    assert "too few" in refused.err or refused.code == 0, refused.err
    for command in ("generate", "trace"):
        refused = sixfold(command, smollm2, "--prompt", data, *(["--token", "0"] if command == "trace" else []))
        assert refused.code == 2 and "--prompt: " + named in refused.err, refused.err
    refused = sixfold("render", smollm2, file)
    assert refused.code == 3 and named in refused.err, refused.err


def test_lines_of_json_that_are_not_utf8(sixfold, smollm2):
    refused = sixfold("tokenize", smollm2, "--jsonl", stdin=b'"a"\n"b\xff"\n')
    assert refused.code == 3 and "line 2" in refused.err and "byte 2 (0xff) is not UTF-8" in refused.err, refused.err
    lines = sixfold("tokenize", smollm2, "--jsonl", "--lossy", stdin=b'"a"\n"b\xff"\n').out.splitlines()
    assert json.loads(lines[1])["ids"] == sixfold("tokenize", smollm2, "--json", stdin="b\ufffd").json()["ids"]


@pytest.mark.parametrize("given, named", [("1 2 49152", 49152), ("[2147483647]", 2147483647), ('{"ids": [5, 99999]}', 99999)])
def test_ids_without_a_token_are_refused_by_name(sixfold, smollm2, given, named):
    """SmolLM2 has the ids 0 to 49151."""
    refused = sixfold("detokenize", smollm2, stdin=given)
    assert refused.code == 3 and refused.out == "" and f"{named} is no token id" in refused.err and "49151" in refused.err, refused.err
    assert sixfold("detokenize", smollm2, stdin="49151 0").code == 0
    refused = sixfold("detokenize", smollm2, "--jsonl", stdin=f'{{"ids": [1]}}\n{{"ids": [{named}]}}\n')
    assert refused.code == 3 and "line 2" in refused.err and f"{named} is no token id" in refused.err, refused.err


def test_render(sixfold, smollm2, tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    text = sixfold("render", smollm2, "-", stdin=json.dumps(messages)).out
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"messages": messages, "add_generation_prompt": False}))
    assert sixfold("render", smollm2, file).out.endswith("Hi<|im_end|>\n")
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ extra }}"
    answer = sixfold("render", smollm2, file, "--chat-template", template, "--chat-template-kwargs", '{"extra": "!"}')
    assert answer.out == "[user]Hi!"
    refused = sixfold("render", smollm2, file, "--chat-template", "{{ raise_exception('no such role') }}")
    assert refused.code == 2 and "no such role" in refused.err
    for bad in ("", "[", "3", "{}"):
        assert sixfold("render", smollm2, "-", stdin=bad).code == 3


def test_generate_text_and_its_ids_agree(sixfold, smollm2):
    answer = sixfold("generate", smollm2, "--prompt", "The capital of France is", "--max-tokens", 8, "--json").json()
    assert "Paris" in answer["text"]
    ids = json.dumps({"ids": answer["token_ids"]})
    assert sixfold("detokenize", smollm2, stdin=ids).out == answer["text"]
    plain = sixfold("generate", smollm2, "--prompt", "The capital of France is", "--max-tokens", 8)
    assert plain.out == answer["text"] + "\n" and "tokens/s" in plain.err


def test_speed_is_that_of_sampling(sixfold, smollm2):
    """Few tokens reach the printing thread together; their times are those of the steps."""
    def remark(*flags):
        answer = sixfold("generate", smollm2, "--prompt", "The capital of France is", "--temperature", 1, "--seed", 3, "--ignore-eos", *flags)
        return answer.err.strip().splitlines()[-1]

    whole = re.fullmatch(r"5 tokens in, 3 out \(length\); first after (\d+) ms, then ([\d.]+) tokens/s", remark("--max-tokens", 3))
    assert whole and float(whole[2]) < 5000, "a step of 135 million weights takes longer than 0.2 ms"
    assert re.fullmatch(r"5 tokens in, 1 out \(length\); first after \d+ ms", remark("--max-tokens", 1))
    # Four first tokens come from one step, and say nothing of the time of a second.
    assert re.fullmatch(r"5 tokens in, 4 out \(length\); first after \d+ ms", remark("--max-tokens", 1, "--n", 4))


def test_a_stop_string_ends_the_text_before_it(sixfold, smollm2):
    answer = sixfold("generate", smollm2, "--prompt", "The capital of France is", "--max-tokens", 20, "--stop", "Paris",
                     "--json").json()
    assert answer["finish_reason"] == "stop" and "Paris" not in answer["text"]


def test_perplexity_counts_the_second_half_of_each_window(sixfold, smollm2, tmp_path):
    text = (ROOT / "tests/data/perplexity.txt").read_text()[:6000]
    file = tmp_path / "text"
    file.write_text(text)
    tokens = len(sixfold("tokenize", smollm2, "--no-special", "--json", stdin=text).json()["ids"])
    answer = sixfold("perplexity", smollm2, file, "--context", 128, "--json")
    result = answer.json()
    assert result["windows"] == tokens // 128
    assert result["tokens"] == result["windows"] * 63
    assert 2 < result["perplexity"] < 100 and math.isfinite(result["standard_error"])
    again = sixfold("perplexity", smollm2, file, "--context", 128, "--max-num-batched-tokens", 17, "--json").json()
    assert again == result
    file.write_text("short")
    answer = sixfold("perplexity", smollm2, file)
    assert answer.code == 2 and "--context" in answer.err


@pytest.mark.parametrize("adds_bos", [True, False])
def test_perplexity_puts_bos_before_every_window(sixfold, tmp_path, adds_bos):
    """Against losses computed here from the logits of each window, its first token replaced by BOS where the tokenizer adds one."""
    letters = {"<s>": 0} | {letter: 1 + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    tokenizer = {"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "special": True, "single_word": False, "lstrip": False,
                                                     "rstrip": False, "normalized": False}],
                 "normalizer": None, "pre_tokenizer": None, "decoder": None,
                 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                                    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}} if adds_bos else None,
                 "model": {"type": "BPE", "vocab": letters, "merges": []}}
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    text = "the quick brown fox jumps over the lazy dog and then it sleeps all day in the warm sun of a long summer"
    (tmp_path / "text").write_text(text)
    model = ROOT / "tests/golden/llama_gqa"
    ids = [0] * adds_bos + [letters[letter] for letter in text]
    context, losses = 24, []
    for window in range(len(ids) // context):
        tokens = ids[window * context:(window + 1) * context]
        if adds_bos:
            tokens[0] = 0
        out = tmp_path / "logits"
        assert sixfold("logits", model, "--tokens", ",".join(map(str, tokens)), "--output", out, "--dtype", "f32", "--quiet").code == 0
        values = safetensors_file.read(out)["logits"].values()
        for row in range(context // 2, context - 1):
            of_row = values[row * 107:(row + 1) * 107]
            losses.append(math.log(sum(math.exp(v) for v in of_row)) - of_row[tokens[row + 1]])
    assert len(losses) == 4 * 11
    got = sixfold("perplexity", model, tmp_path / "text", "--tokenizer", folder, "--context", context, "--dtype", "f32", "--json").json()
    assert got["windows"] == 4 and got["tokens"] == len(losses)
    assert math.isclose(got["perplexity"], math.exp(sum(losses) / len(losses)), rel_tol=1e-5)


def test_run_answers_a_prompt_from_arguments_and_from_stdin(sixfold, smollm2):
    flags = ["--temperature", 0, "--max-tokens", 16]
    one = sixfold("run", smollm2, "What is the capital of France?", *flags)
    assert one.code == 0 and "Paris" in one.out and "tokens/s" in one.err
    assert sixfold("run", smollm2, *flags, stdin="What is the capital of France?\n").out == one.out
    assert sixfold("run", smollm2, stdin="").code == 2
