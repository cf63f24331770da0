"""generation_config.json advises; it never keeps a model from loading."""
import json
import shutil

import pytest

from program import GOLDEN


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(GOLDEN / "llama_gqa", folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def generate(sixfold, model, *flags):
    return sixfold("generate", model, "--prompt-tokens", "1,2,3", "--max-tokens", 4, *flags)


def test_advice_that_cannot_be_followed_is_one_warning(sixfold, model):
    plain = generate(sixfold, model, "--json").json()["token_ids"]
    advice = {"temperature": 2.5, "max_new_tokens": 0, "top_p": "0.9", "min_p": None, "top_k": -7, "repetition_penalty": 0,
              "eos_token_id": "2", "cache_implementation": 5, "unknown": {"x": 1}}
    (model / "generation_config.json").write_text(json.dumps(advice))
    answer = generate(sixfold, model, "--json")
    assert answer.json()["token_ids"] == plain
    warnings = [line for line in answer.err.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "generation_config.json" in warnings[0], answer.err
    for field in ("temperature 2.5", "max_new_tokens 0", "top_p '0.9'", "top_k -7", "repetition_penalty 0", "eos_token_id '2'"):
        assert field in warnings[0], warnings[0]
    for field in ("min_p", "cache_implementation", "unknown"):
        assert field not in warnings[0]


def test_advice_in_range_is_followed_without_a_word(sixfold, model):
    (model / "generation_config.json").write_text(json.dumps({"repetition_penalty": 2.5}))
    answer = generate(sixfold, model, "--json")
    given = sixfold("generate", GOLDEN / "llama_gqa", "--prompt-tokens", "1,2,3", "--max-tokens", 4, "--repetition-penalty", 2.5, "--json")
    assert answer.json()["token_ids"] == given.json()["token_ids"]
    assert "warning" not in answer.err


@pytest.mark.parametrize("text", ["", "{", "[]", "{\"temperature\": NaN}", "{\"top_k\": 1, \"top_k\": 2}", "\xff"])
def test_a_damaged_file_is_passed_over(sixfold, model, text):
    (model / "generation_config.json").write_text(text, encoding="latin-1")
    answer = generate(sixfold, model)
    assert answer.code == 0, answer.err
    assert sum("warning" in line and "generation_config.json" in line for line in answer.err.splitlines()) == 1
    assert sixfold("inspect", model).code == 0
