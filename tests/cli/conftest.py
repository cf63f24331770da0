"""Runs the built program. SIXFOLD_BIN names it (default: build/release/sixfold), SIXFOLD_MODEL the default model."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


class Answer:
    """What one run of the program gave."""

    def __init__(self, process):
        self.code = process.returncode
        self.bytes = process.stdout
        self.out = process.stdout.decode(errors="replace")
        self.err = process.stderr.decode(errors="replace")

    def json(self):
        assert self.code == 0, f"exit {self.code}: {self.err}"
        return json.loads(self.bytes.decode("utf-8"))


class Program:
    def __init__(self, binary):
        self.binary = binary

    def environment(self, **extra):
        """Ours without any setting of the program, so that tests say all that counts."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SIXFOLD_")}
        return kept | extra

    def __call__(self, *arguments, stdin=b"", env=None, cwd=None, preexec=None, timeout=300):
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        return Answer(subprocess.run([self.binary, *map(str, arguments)], input=stdin, capture_output=True,
                                     env=self.environment(**(env or {})), cwd=cwd, preexec_fn=preexec, timeout=timeout))

    def start(self, *arguments, **kwargs):
        return subprocess.Popen([self.binary, *map(str, arguments)], env=self.environment(), **kwargs)


@pytest.fixture(scope="session")
def sixfold():
    binary = pathlib.Path(os.environ.get("SIXFOLD_BIN", ROOT / "build/release/sixfold")).resolve()
    assert binary.exists(), f"{binary} is not built"
    return Program(str(binary))


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
