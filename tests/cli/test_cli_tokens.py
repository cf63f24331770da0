"""What decides token ids and ends answers: metadata that is missing, end tokens of templates, BOS on demand."""
import json
import shutil

import pytest

import gguf_file
from program import ROOT

TEXT = "hello low<|im_end|> he"


def ids_of(sixfold, model, text=TEXT, *more):
    return sixfold("tokenize", model, "--json", *more, stdin=text).json()["ids"]


def without(vocabulary, key):
    return {k: v for k, v in vocabulary.items() if k != key}


@pytest.mark.parametrize("key", ["merges", "token_type", "model", "tokens"])
def test_a_byte_level_vocabulary_is_refused_without(key, sixfold, tmp_path):
    whole = gguf_file.write(tmp_path / "whole.gguf", gguf_file.byte_level())
    assert ids_of(sixfold, whole) == gguf_file.byte_level_reference().encode(TEXT).ids
    part = gguf_file.write(tmp_path / "part.gguf", without(gguf_file.byte_level(), key))
    refused = sixfold("tokenize", part, "--json", stdin=TEXT)
    assert refused.code == 3 and refused.out == ""
    assert f"tokenizer.ggml.{key} is missing" in refused.err and "--tokenizer" in refused.err


@pytest.mark.parametrize("key", ["scores", "token_type"])
def test_a_sentence_piece_vocabulary_is_refused_without(key, sixfold, tmp_path):
    whole = gguf_file.write(tmp_path / "whole.gguf", gguf_file.sentence_piece())
    assert ids_of(sixfold, whole, "low") == [1, 259, 266]
    part = gguf_file.write(tmp_path / "part.gguf", without(gguf_file.sentence_piece(), key))
    refused = sixfold("tokenize", part, "--json", stdin=TEXT)
    assert refused.code == 3 and f"tokenizer.ggml.{key} is missing" in refused.err


def test_an_absent_pre_tokenizer_is_guessed_with_one_warning(sixfold, tmp_path):
    part = gguf_file.write(tmp_path / "part.gguf", without(gguf_file.byte_level(), "pre"))
    answer = sixfold("tokenize", part, "--json", stdin=TEXT)
    assert answer.json()["ids"] == gguf_file.byte_level_reference().encode(TEXT).ids
    assert answer.err.count("tokenizer.ggml.pre is missing") == 1
    whole = gguf_file.write(tmp_path / "whole.gguf", gguf_file.byte_level())
    assert sixfold("tokenize", whole, "--json", stdin=TEXT).err == ""


def test_inspect_lists_end_tokens_and_where_each_came_from(sixfold, tmp_path):
    vocabulary = gguf_file.byte_level()
    end, text_end = (vocabulary["tokens"].index(token) for token in ("<|im_end|>", "<|endoftext|>"))
    file = gguf_file.write(tmp_path / "chat.gguf", vocabulary, gguf_file.CHATML)
    ends = sixfold("inspect", file, "--json").json()["end_tokens"]
    assert [(e["id"], e["token"]) for e in ends] == [(text_end, "<|endoftext|>"), (end, "<|im_end|>")]
    assert ends[0]["sources"] == ["tokenizer.ggml.eos_token_id"]
    assert ends[1]["sources"] == ["the chat template closes an answer with it"]
    shown = sixfold("inspect", file).out
    assert f"{end} <|im_end|> (the chat template closes an answer with it)" in shown
    both = gguf_file.write(tmp_path / "both.gguf", vocabulary | {"eot_token_id": end}, gguf_file.CHATML)
    ends = sixfold("inspect", both, "--json").json()["end_tokens"]
    assert ends[1]["sources"] == ["tokenizer.ggml.eot_token_id", "the chat template closes an answer with it"]


@pytest.fixture
def folder(tiny, tmp_path):
    """A model folder whose tokenizer_config.json asks for a BOS that tokenizer.json does not add."""
    home = tmp_path / "model"
    shutil.copytree(tiny, home)
    made = gguf_file.byte_level_reference()
    made.save(str(home / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": True}
    (home / "tokenizer_config.json").write_text(json.dumps(config))
    (home / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 7]}))
    return home


def test_inspect_names_the_files_of_end_tokens_of_a_folder(sixfold, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    ends = sixfold("inspect", folder, "--json").json()["end_tokens"]
    assert {e["id"]: e["sources"] for e in ends} == {
        7: ["config.json", "generation_config.json"], 3: ["generation_config.json"],
        262: ["eos_token of tokenizer_config.json"]}
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    ends = sixfold("inspect", folder, "--json").json()["end_tokens"]
    assert ends[-1]["sources"] == ["eos_token of special_tokens_map.json"]


def test_bos_on_demand(sixfold, folder):
    plain, bos = gguf_file.byte_level_reference().encode(TEXT).ids, 261
    assert ids_of(sixfold, folder) == ids_of(sixfold, folder, TEXT, "--add-bos-token", "auto") == plain
    assert ids_of(sixfold, folder, TEXT, "--add-bos-token", "true") == [bos] + plain
    assert ids_of(sixfold, folder, TEXT, "--add-bos-token", "true", "--no-special") == plain
    found = sixfold("inspect", folder, "--json").json()["vocabulary"]
    assert (found["adds_bos"], found["add_bos_token"], found["add_eos_token"]) == (False, True, None)
    assert "--add-bos-token true" in sixfold("inspect", folder).out
    (folder / "tokenizer_config.json").write_text("{}")
    refused = sixfold("tokenize", folder, "--add-bos-token", "true", stdin=TEXT)
    assert refused.code == 2 and "--add-bos-token" in refused.err and "no BOS" in refused.err


def test_bos_of_a_gguf_file_can_be_left_out(sixfold, tmp_path):
    file = gguf_file.write(tmp_path / "v.gguf", gguf_file.sentence_piece())
    assert ids_of(sixfold, file, "low") == [1, 259, 266]
    assert ids_of(sixfold, file, "low", "--add-bos-token", "false") == [259, 266]


def test_a_chat_ends_where_its_template_closes_the_turn(sixfold, smollm2, tmp_path):
    """The file names the base model's end of text only."""
    file = tmp_path / "base_eos.gguf"
    shutil.copyfile(smollm2, file)
    gguf_file.set_u32(file, "tokenizer.ggml.eos_token_id", 0)
    ask = ["run", "--prompt", "What is the capital of France?", "--temperature", 0, "--max-tokens", 64, "--quiet"]
    want = sixfold(ask[0], smollm2, *ask[1:])
    assert want.code == 0 and "Paris" in want.out
    assert sixfold(ask[0], file, *ask[1:]).out == want.out
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = sixfold("generate", file, "--prompt", prompt, "--max-tokens", 64, "--json").json()
    assert answer["finish_reason"] == "stop" and "<|im_start|>" not in answer["text"]
    # Another template, other ends: this one closes turns with text, so the answer runs on.
    bare = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }} END\n{% endfor %}<|im_start|>assistant\n"
    longer = sixfold(ask[0], file, *ask[1:-1], "--chat-template", bare)
    assert longer.code == 0 and "limit of tokens" in longer.err
