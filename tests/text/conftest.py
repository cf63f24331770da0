import json

import pytest

import packages
import tool


@pytest.fixture(scope="session")
def corpus():
    lines = (packages.HERE / "corpus.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines if line]


@pytest.fixture
def text_tool(monkeypatch):
    """Makes text_tool the program under test."""
    path = tool.text_tool()
    if not path.exists():
        pytest.skip(f"{path} is not built")
    monkeypatch.setenv("SIXFOLD_BIN", str(path))
