import json

import pytest

import packages


@pytest.fixture(scope="session")
def corpus():
    lines = (packages.HERE / "corpus.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines if line]
