"""SIXFOLD_BIN names the program (default: build/release/sixfold), SIXFOLD_MODEL the default model."""
import os
import pathlib

import pytest

from program import GOLDEN, ROOT, under_test


@pytest.fixture(scope="session")
def sixfold():
    return under_test()


@pytest.fixture(scope="session")
def smollm2():
    """The default model, which tools/fetch_default_model.sh fetches."""
    path = pathlib.Path(os.environ.get("SIXFOLD_MODEL", ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.exists():
        pytest.skip(f"{path} is not fetched")
    return path


@pytest.fixture(scope="session")
def tiny():
    """A model folder without a tokenizer."""
    return GOLDEN / "llama_gqa"


@pytest.fixture(scope="session")
def isas(sixfold):
    """Names of the instruction sets that this machine has, narrowest first."""
    checks = sixfold("doctor", "--json").json()["checks"]
    widest = next(check["value"] for check in checks if check["check"] == "instructions")
    names = ["scalar", "avx2", "avx512", "amx"]
    return names[: names.index(widest) + 1]
