"""The log of `sixfold serve`: what an operator reads on stderr, and what a client cannot do to it."""
import contextlib
import fcntl
import http.client
import json
import os
import re
import signal
import subprocess

import pytest

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Served:
    """A server that has printed its address; its stderr is read at the end, or never."""

    def __init__(self, process):
        self.process = process
        self.port = None
        while self.port is None:
            line = process.stdout.readline()
            assert line, process.communicate()
            found = re.search(rb"http://127\.0\.0\.1:(\d+)", line)
            self.port = found and int(found.group(1))

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def end(self, *signals):
        for number in signals or [signal.SIGTERM]:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, (err or b"").decode()


@pytest.fixture
def serve(sixfold):
    with contextlib.ExitStack() as stack:
        def start(model, *arguments, **kwargs):
            process = sixfold.start("serve", model, "--port", 0, *arguments, stdout=subprocess.PIPE,
                                    **({"stderr": subprocess.PIPE} | kwargs))
            stack.callback(lambda: process.poll() is None and process.kill())
            return Served(process)
        yield start


PROMPT = {"prompt": [3, 5, 7], "max_tokens": 4, "ignore_eos": True}


def test_every_line_of_json_is_an_object_and_nothing_secret_is_in_it(serve, tiny):
    server = serve(tiny, "--log-format", "json", "--api-key", "the-secret-key", "--log-level", "debug")
    key = {"Authorization": "Bearer the-secret-key"}
    assert server.ask("POST", "/v1/completions", PROMPT | {"zeta": 1}, key | {"x-request-id": 'a" \\ forged=1'})[0] == 200
    assert server.ask("POST", "/v1/completions", {"prompt": "private words", "temperature": "private"}, key)[0] == 400
    assert server.ask("POST", "/v1/completions", PROMPT | {"model": "no\nsuch \u202e model"}, key)[0] == 404
    assert server.ask("POST", "/v1/completions", PROMPT, {"Authorization": "Bearer wrong-key"})[0] == 401
    assert server.ask("GET", "/health")[0] == 200
    code, err = server.end()
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert all(re.fullmatch(TIME, line["time"]) and line["level"] and line["event"] for line in lines)
    assert "private" not in err and "-key" not in err and err.isascii()
    start = next(line for line in lines if line["event"] == "start")
    assert start["message"] == f"serving at http://127.0.0.1:{server.port}"
    assert start["model"] == "llama_gqa" and start["ranks"] == 1 and start["threads"] >= 1
    assert start["kv_cache_bytes"] > 0 and start["weights_bytes"] > 0 and start["pid"] == server.process.pid
    assert {"layout", "isa", "dtype", "max_model_len", "max_num_seqs", "version", "commit"} <= set(start)
    answered, refused, unknown, stranger, health = [line for line in lines if line["event"] == "request"]
    assert answered["request_id"] == 'a" \\ forged=1' and answered["ignored_fields"] == "zeta"
    assert (answered["status"], answered["finish"], answered["endpoint"]) == (200, "length", "/v1/completions")
    assert (answered["prompt_tokens"], answered["cached_tokens"], answered["completion_tokens"]) == (3, 0, 4)
    assert 0 <= answered["queue_ms"] <= answered["ttft_ms"] <= answered["total_ms"] and answered["tpot_ms"] >= 0
    assert (refused["status"], unknown["status"], stranger["status"], health["status"]) == (400, 404, 401, 200)
    assert unknown["reason"].startswith("The model 'no\nsuch \u202e model' does not exist")
    assert health["level"] == "debug" and refused["level"] == "info"
    assert lines[-1]["event"] == "end" and "drained" in lines[-1]["message"]


def test_text_is_a_line_a_request(serve, tiny):
    server = serve(tiny)
    assert server.ask("POST", "/v1/completions", PROMPT | {"model": "x\n2026-01-01T00:00:00.000Z error   forged"})[0] == 404
    assert server.ask("POST", "/v1/completions", PROMPT, {"x-request-id": "mine"})[0] == 200
    assert server.ask("GET", "/metrics")[0] == 200
    code, err = server.end()
    assert code == 0
    for line in err.splitlines():
        assert re.match(TIME + r" (debug|info|warning|error) {1,5}\S", line), line
    requests = [line for line in err.splitlines() if " request " in line]
    assert len(requests) == 2 and "request_id=mine" in requests[1] and "status=200" in requests[1]
    assert not [line for line in err.splitlines() if re.match(TIME + " error", line)]


@pytest.mark.parametrize("level, events", [("off", set()), ("error", set()), ("warning", {"no tokenizer"})])
def test_levels(serve, tiny, level, events):
    server = serve(tiny, "--log-level", level)
    assert server.ask("POST", "/v1/completions", PROMPT)[0] == 200
    code, err = server.end()
    assert code == 0 and len(err.splitlines()) == len(events)
    assert all(event in err for event in events)


def test_a_stderr_that_nobody_reads_stops_neither_answers_nor_the_end(serve, tiny):
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    server = serve(tiny, "--log-level", "debug", stderr=write_end)
    os.close(write_end)
    for _ in range(30):
        assert server.ask("GET", "/health", headers={"x-request-id": "x" * 200})[0] == 200
    assert server.ask("POST", "/v1/completions", PROMPT)[0] == 200
    assert server.end()[0] == 0
    os.close(read_end)


def test_a_reader_of_stderr_that_is_gone_and_a_closed_stderr(serve, tiny):
    read_end, write_end = os.pipe()
    server = serve(tiny, stderr=write_end)
    os.close(write_end)
    os.close(read_end)
    assert server.ask("POST", "/v1/completions", PROMPT)[0] == 200
    assert server.end()[0] == 0
    # Without descriptor 2 the next connection would get its number, and with it the log.
    server = serve(tiny, "--log-level", "debug", stderr=None, preexec_fn=lambda: os.close(2))
    for _ in range(3):
        status, body = server.ask("POST", "/v1/completions", PROMPT)
        assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 4
    assert server.end()[0] == 0


def test_a_second_signal_cuts_says_so_and_ends_with_1(serve, smollm2):
    server = serve(smollm2, "--log-format", "json")
    connections = []
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True, "n": 4}))
        assert connection.getresponse().status == 200
        connections.append(connection)
    server.process.send_signal(signal.SIGINT)
    lines = []
    while not lines or lines[-1]["event"] != "drain":
        lines.append(json.loads(server.process.stderr.readline()))
    assert lines[-1]["message"] == "draining 2 answers; Ctrl-C again ends at once"
    code, err = server.end(signal.SIGINT)
    assert code == 1
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["message"] for line in lines if line["event"] == "cut"] == ["cutting 2 answers: a second signal ends at once"]
    assert lines[-1]["level"] == "error" and "2 answers were cut" in lines[-1]["message"]
    for connection in connections:
        connection.close()


def test_what_ends_a_server_before_it_listens_is_json_too(sixfold):
    answer = sixfold("serve", "/no/such/model", "--log-format", "json",
                     env={"SIXFOLD_SERVICE_HOST": "10.0.0.1"})
    assert answer.code == 3
    warning, error = [json.loads(line) for line in answer.err.splitlines()]
    assert warning["level"] == "warning" and "SIXFOLD_SERVICE_HOST" in warning["message"]
    assert error["level"] == "error" and "/no/such/model" in error["message"]
