"""Ids and texts equal to HF's `tokenizers`, on tokenizers of published models and a multilingual corpus."""

import functools
import json
import os
import random
import subprocess

import pytest
import tokenizers

import gguf_vocab
import packages
import tool


@functools.lru_cache(maxsize=1)
def reference(name):
    """HF's own tokenizer, without the truncation and padding that its file may ask for."""
    made = tokenizers.Tokenizer.from_file(str(packages.folder(name) / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def mixed(corpus):
    """The corpus, and longer texts that join lines of several scripts."""
    pick = random.Random(7)
    return corpus + [" ".join(pick.sample(corpus, 6)) for _ in range(60)] + ["\n".join(corpus[:120])]


def assert_equal(got, want, texts):
    wrong = [(t, g, w) for t, g, w in zip(texts, got, want) if g != w]
    assert not wrong, f"{len(wrong)} of {len(texts)} differ; first: {wrong[0]!r:.2000}"


def random_ids(size, valid, count=200):
    pick = random.Random(11)
    return [[pick.choice(valid) for _ in range(pick.randint(1, size))] for _ in range(count)]


@pytest.mark.parametrize("name", list(packages.NPM))
def test_ids_equal_hf(name, corpus):
    texts = mixed(corpus)
    hf = reference(name)
    folder = packages.folder(name)
    for special in (True, False):
        want = [e.ids for e in hf.encode_batch(texts, add_special_tokens=special)]
        assert_equal(tool.tokenize(folder, texts, special), want, texts)


@pytest.mark.parametrize("name", list(packages.NPM))
def test_texts_equal_hf(name, corpus):
    hf = reference(name)
    ids = [e.ids for e in hf.encode_batch(mixed(corpus), add_special_tokens=True)]
    # Runs of byte tokens that are not UTF-8 are left out where the decoder is ByteFallback: HF then spoils the valid
    # characters beside them, which a stream has already shown.
    fallback = "ByteFallback" in json.loads(hf.to_str())["decoder"].__repr__()
    vocab = hf.get_vocab(with_added_tokens=True)
    valid = [i for token, i in vocab.items() if not (fallback and token.startswith("<0x"))]
    ids += random_ids(12, sorted(valid))
    assert_equal(tool.detokenize(packages.folder(name), ids), hf.decode_batch(ids, skip_special_tokens=False), ids)


@pytest.mark.parametrize("name", list(gguf_vocab.PRES))
def test_gguf_vocabulary_of_the_same_model(name, corpus, tmp_path, text_tool):
    """The vocabulary as a GGUF would hold it gives the ids that the tokenizer.json gives."""
    texts = mixed(corpus)
    model = tmp_path / "vocab.json"
    model.write_text(json.dumps(gguf_vocab.of_hf(packages.folder(name), gguf_vocab.PRES[name])))
    hf = reference(name)
    want = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
    assert_equal(tool.tokenize(model, texts, special=False), want, texts)
    assert_equal(tool.detokenize(model, want), hf.decode_batch(want, skip_special_tokens=False), want)


@pytest.mark.skipif("SIXFOLD_TEST_SMOLLM2" not in os.environ, reason="SIXFOLD_TEST_SMOLLM2 names SmolLM2's .gguf")
def test_smollm2(corpus, tmp_path):
    gguf = os.environ["SIXFOLD_TEST_SMOLLM2"]
    vocab = gguf_vocab.of_gguf(gguf)
    hf = gguf_vocab.smollm2_reference(vocab)
    model = gguf
    if tool.is_text_tool():
        model = tmp_path / "vocab.json"
        model.write_text(json.dumps(vocab))
    texts = mixed(corpus)
    want = [e.ids for e in hf.encode_batch(texts, add_special_tokens=False)]
    assert_equal(tool.tokenize(model, texts), want, texts)
    want += random_ids(12, list(range(len(vocab["tokens"]))))
    assert_equal(tool.detokenize(model, want), hf.decode_batch(want, skip_special_tokens=False), want)


@pytest.mark.parametrize("name", ["llama3", "qwen3", "deepseek_v3", "gptoss", "gemma3", "llama2"])
def test_streams_add_up(name, corpus, text_tool):
    """The deltas of a stream, joined, are the decoded ids; none holds half a character, stop strings end it in time."""
    hf = reference(name)
    texts = mixed(corpus)
    ids = [e.ids for e in hf.encode_batch(texts)] + random_ids(20, sorted(hf.get_vocab().values()), 300)
    answers = tool.jsonl("stream", packages.folder(name), rows=[{"ids": i} for i in ids])
    for row, answer in zip(ids, answers):
        assert "".join(answer["deltas"]) == answer["decoded"], row
    pick = random.Random(5)
    rows = []
    for row, answer in zip(ids, answers):
        text = answer["decoded"]
        at = sorted(pick.sample(range(len(text) + 1), 2)) if text else [0, 0]
        rows.append({"ids": row, "stop": [text[at[0]:at[1]][:6], "never in any text \u0001", text[-3:]]})
    for row, whole, answer in zip(rows, answers, tool.jsonl("stream", packages.folder(name), rows=rows)):
        ends = [(whole["decoded"].find(s) + len(s), whole["decoded"].find(s)) for s in row["stop"]
                if s and s in whole["decoded"]]
        want = whole["decoded"][:min(ends)[1]] if ends else whole["decoded"]
        assert "".join(answer["deltas"]) == want, row
        assert (answer["stopped"] is not None) == bool(ends)


@pytest.mark.parametrize("name", ["llama3", "llama2"])
@pytest.mark.parametrize("unit", ["word ", "line\n", "中文字。", "\u0001\u0002", "x1,"])
def test_long_texts_stay_below_a_gibibyte(name, unit):
    text = (unit * (8 << 20))[:(8 << 20) // len(unit.encode()) * len(unit)].encode()
    limited = ["prlimit", f"--as={1 << 30}", tool.binary(), "tokenize", str(packages.folder(name)), "--json"]
    done = subprocess.run(limited, input=text, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-300:]
    ids = json.loads(done.stdout)["ids"]
    sample = unit * 500
    want = reference(name).encode(sample).ids
    assert ids[:len(want) - 20] == want[:-20]  # the text goes on where the sample ends


def test_an_endless_word_is_refused():
    done = tool.run("tokenize", packages.folder("llama2"), "--json", stdin=b" " * (5 << 20), check=False)
    assert done.returncode in (1, 2)
    assert "can't be split" in done.stderr.decode()


def test_invalid_utf8_reads_as_the_replacement_character():
    """With --lossy as Python's errors="replace"; without, and by text_tool, which has no such door, it is refused."""
    broken = b"ok \xff \xe4\xb8 end"
    done = tool.run("tokenize", packages.folder("llama3"), "--json", stdin=broken, check=False)
    assert "UTF-8" in done.stderr.decode()
    if tool.is_text_tool():
        assert done.returncode in (1, 2)
        return
    assert done.returncode == 3
    done = tool.run("tokenize", packages.folder("llama3"), "--json", "--lossy", stdin=broken)
    want = reference("llama3").encode(broken.decode(errors="replace"), add_special_tokens=True).ids
    assert json.loads(done.stdout)["ids"] == want
