"""SIXFOLD_BIN names the program (default: build/release/sixfold). Helpers of tests/cli are used here too."""
import json
import os
import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cli"))

import safetensors_file  # noqa: E402
import tiny_models  # noqa: E402
from program import GOLDEN, under_test  # noqa: E402


@pytest.fixture(scope="session")
def sixfold():
    return under_test()


@pytest.fixture(scope="session")
def smollm2():
    """The default model, where SIXFOLD_TEST_SMOLLM2 names it."""
    path = os.environ.get("SIXFOLD_TEST_SMOLLM2")
    if not path:
        pytest.skip("SIXFOLD_TEST_SMOLLM2 is not set")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def tiny():
    return GOLDEN / "llama_gqa"


@pytest.fixture(scope="session")
def talkative(tmp_path_factory):
    """A tiny model with room for answers that take long, and with letters as tokens."""
    folder = tiny_models.copy("llama_gqa", tmp_path_factory.mktemp("models") / "talkative", max_position_embeddings=65536)
    return tiny_models.add_letters(folder)


@pytest.fixture(scope="session")
def prompt():
    """model folder → its golden prompt as --tokens takes it."""
    def tokens(folder):
        return ",".join(map(str, safetensors_file.read(folder / "expected.safetensors")["tokens"].values()))
    return tokens


@pytest.fixture(scope="session")
def config():
    return lambda folder: json.loads((folder / "config.json").read_text())
