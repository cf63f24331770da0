"""Tokens declared beside tokenizer.json: ids and specialness equal to transformers', whatever file names them."""

import json
import random
import shutil

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import tool

# In a base vocabulary, in another's added tokens, or nowhere; some a part of others, some looking like words.
NAMES = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|im", "<tool>", "</tool>", "Hello", "he", "low", "<Pad>",
         "<img>", "<x y>", "é", "#"]
TEXTS = ["", "Hello <s> low</s> he", "<|im_start|>user\nHello<|im_end|>\n", "a <tool>  b </tool> c", "hello<img>low <x y> é#é",
         "  <Pad>  <pad>x<unk> ", "<|im_start|><|im_end|><|im<tool>Hello", "say Hello, Hellow he-llow <X Y>#low"]


def byte_level():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "o"), ("lo", "w"), ("l", "lo")]
    vocab = {t: i for i, t in enumerate(letters + [a + b for a, b in merges] + ["<s>", "</s>"])}
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return made


def sentence_piece():
    letters = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + list("▁helow")
    merges = [("h", "e"), ("l", "o"), ("lo", "w"), ("▁", "he")]
    vocab = {t: i for i, t in enumerate(letters + [a + b for a, b in merges])}
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def words():
    vocab = {t: i for i, t in enumerate(["<unk>", "hello", "low", "he", "user", "<", ">", "#"])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


BASES = [byte_level, sentence_piece, words]


def flags(pick, name, special=None):
    made = {"content": name, "lstrip": pick.random() < 0.2, "rstrip": pick.random() < 0.2,
            "normalized": pick.random() < 0.3, "single_word": pick.random() < 0.2}
    if special is not False:
        made["special"] = pick.random() < 0.6
    return made


def token(pick, name):
    """A token as a config spells it: a text, or a serialized AddedToken."""
    return name if pick.random() < 0.6 else {"__type": "AddedToken", **flags(pick, name)}


def roles(pick, spell):
    names = ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "image_token"]
    return {role: spell(pick.choice(NAMES)) for role in pick.sample(names, pick.randint(0, 4))}


def sample(pick, most):
    return pick.sample(NAMES, pick.randint(0, most))


def write(folder, seed):
    """A folder that declares tokens here and there; the same one for a seed."""
    pick = random.Random(seed)
    made = pick.choice(BASES)()
    made.add_tokens([AddedToken(**flags(pick, name)) for name in sample(pick, 4)])
    made.save(str(folder / "tokenizer.json"))
    size = made.get_vocab_size()
    config, mapped, added = {}, {}, {}
    if pick.random() < 0.8:
        config = roles(pick, lambda name: token(pick, name))
    if pick.random() < 0.5:
        ids = pick.sample(range(size - 3, size + 9), pick.randint(0, 5))
        config["added_tokens_decoder"] = {str(i): flags(pick, n) for i, n in zip(ids, pick.sample(NAMES, len(ids)))}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if pick.random() < 0.3:
            config[key] = [token(pick, name) for name in sample(pick, 3)]
    if pick.random() < 0.15:
        config["extra_special_tokens"] = {"audio_token": pick.choice(NAMES), "boi": pick.choice(NAMES)}
    if pick.random() < 0.5:
        mapped = roles(pick, lambda name: name if pick.random() < 0.5 else flags(pick, name, special=False))
        if pick.random() < 0.4:
            mapped["additional_special_tokens"] = sample(pick, 3)
        if pick.random() < 0.2:
            mapped["extra_special_tokens"] = sample(pick, 3)
    if pick.random() < 0.4:
        added = {name: size - 2 + i for i, name in enumerate(sample(pick, 4))}
    for name, content in (("tokenizer_config", config), ("special_tokens_map", mapped), ("added_tokens", added)):
        if content or pick.random() < 0.5:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return {"config": config, "map": mapped, "added": added}


def compare(folder, what):
    want = PreTrainedTokenizerFast.from_pretrained(str(folder))
    texts = TEXTS + sorted(want.get_vocab())[::7] + sorted(want.get_added_vocab())
    got = tool.tokenize(folder, texts)
    for text, ids in zip(texts, got):
        assert ids == want.encode(text), (text, what)
    # Which are special. Behind a normalizer, newer `tokenizers` show a special token with `normalized` as plain text.
    if tool.is_text_tool() and want.backend_tokenizer.normalizer is None:
        rows = [{"ids": ids} for ids in got]
        plain = [row["text"] for row in tool.jsonl("detokenize", folder, "--skip-special", rows=rows)]
        assert plain == [want.decode(ids, skip_special_tokens=True) for ids in got], what


@pytest.mark.parametrize("part", range(6))
def test_ids_equal_transformers(part, tmp_path):
    for seed in range(part * 25, part * 25 + 25):
        folder = tmp_path / str(seed)
        folder.mkdir()
        compare(folder, write(folder, seed))
        shutil.rmtree(folder)


def without_markers(folder):
    """A byte-level folder whose chat markers stand in the config only, as older Qwen folders have them."""
    made = byte_level()
    made.save(str(folder / "tokenizer.json"))
    return made.get_vocab_size()


MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKED = "<|im_start|>low<|im_end|>"


def test_chat_markers_of_the_added_tokens_decoder(tmp_path):
    size = without_markers(tmp_path)
    decoder = {str(size + i): {"content": name, "special": True} for i, name in enumerate(MARKERS)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"}))
    compare(tmp_path, "decoder")
    assert tool.tokenize(tmp_path, [MARKED])[0][-3:] == [size + 1, 258, size + 2]


def test_chat_markers_of_added_tokens_json(tmp_path):
    size = without_markers(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({name: size + i for i, name in enumerate(MARKERS)}))
    compare(tmp_path, "added_tokens.json")
    assert tool.tokenize(tmp_path, [MARKED])[0][-3:] == [size + 1, 258, size + 2]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_an_end_token_that_the_vocabulary_lacks(file, tmp_path):
    size = without_markers(tmp_path)
    (tmp_path / file).write_text(json.dumps({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}))
    compare(tmp_path, file)
    assert tool.tokenize(tmp_path, [MARKED])[0][-3:] == [size + 1, 258, size]


def test_add_bos_token_of_a_folder_is_passed_over_as_transformers_does(tmp_path):
    without_markers(tmp_path)
    for wish in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>",
                                                                    "add_bos_token": wish, "add_eos_token": wish}))
        compare(tmp_path, wish)


@pytest.mark.parametrize("name,content", [
    ("added_tokens.json", {"<a>": "seven"}), ("added_tokens.json", ["<a>"]), ("added_tokens.json", {"<a>": None}),
    ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<a>"}}}),
    ("tokenizer_config.json", {"added_tokens_decoder": ["<a>"]}),
    ("tokenizer_config.json", {"added_tokens_decoder": {"3": {"special": True}}}),
])
def test_a_damaged_declaration_is_refused_by_name(name, content, tmp_path):
    without_markers(tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    done = tool.run("tokenize", tmp_path, "--json", stdin=b"low", check=False)
    assert done.returncode == 3
    assert name in done.stderr.decode()
