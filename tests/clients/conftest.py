"""Starts the server under test: sixfold with a model, or the scripted one (README.md)."""
import os
import signal
import socket
import subprocess
import time

import openai
import pytest

import raw_http


class ServerUnderTest:
    def __init__(self, port, api_key="none"):
        self.port = port
        self.origin = f"http://127.0.0.1:{port}"
        self.client = openai.OpenAI(base_url=self.origin + "/v1", api_key=api_key, max_retries=0, timeout=300)

    def url(self, path):
        return self.origin + path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(port, *flags):
    scripted = os.environ.get("SIXFOLD_SCRIPTED_SERVER")
    if scripted:
        return [scripted, "--port", str(port), *flags]
    binary, model = os.environ.get("SIXFOLD_BIN"), os.environ.get("SIXFOLD_MODEL")
    if not binary or not model:
        pytest.exit("set SIXFOLD_BIN and SIXFOLD_MODEL, or SIXFOLD_SCRIPTED_SERVER (tests/clients/README.md)", returncode=2)
    return [binary, "serve", model, "--port", str(port), *flags]


class Running:
    """A server process; leaving the block ends it with SIGTERM, which must drain and exit 0."""

    def __init__(self, *flags, api_key="none"):
        self.flags, self.api_key = flags, api_key

    def __enter__(self):
        port = free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SIXFOLD_")}
        self.process = subprocess.Popen(command(port, *self.flags), env=environment)
        deadline = time.monotonic() + 300
        while True:
            try:
                if raw_http.request(f"http://127.0.0.1:{port}/health", timeout=5)[0] == 200:
                    break
            except OSError:
                pass
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
            assert time.monotonic() < deadline, "the server did not come up in 300 s"
            time.sleep(0.1)
        return ServerUnderTest(port, self.api_key)

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        if exception[0] is None:
            assert code == 0, f"SIGTERM must drain and exit 0, got {code}"


@pytest.fixture(scope="session")
def server():
    with Running() as running:
        yield running


@pytest.fixture
def client(server):
    return server.client


@pytest.fixture(scope="session")
def model(server):
    return server.client.models.list().data[0].id


@pytest.fixture
def start_server():
    return Running
