"""sixfold serve as a person starts it: the curl line it prints works, SIGTERM ends it with 0."""
import json
import re
import shlex
import signal
import socket
import subprocess
import time
import urllib.request

import pytest


@pytest.fixture()
def server(sixfold, smollm2):
    process = sixfold.start("serve", smollm2, "--port", 0, "--max-num-seqs", 4, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    greeting = ""
    while "curl" not in greeting or not greeting.endswith("\n\n"):
        line = process.stdout.readline()
        assert line, process.communicate()
        greeting += line
    yield process, greeting
    if process.poll() is None:
        process.kill()
        process.communicate()


def test_the_printed_curl_line_is_answered_and_sigterm_drains(server):
    process, greeting = server
    words = shlex.split(greeting[greeting.index("curl"):].replace("\\\n", " "))
    url, body = words[1], words[words.index("-d") + 1]
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=120))
    assert answer["choices"][0]["message"]["content"]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "drained" in err


def test_sigterm_lets_a_running_answer_end(server):
    process, greeting = server
    base = re.search(r"http://[0-9.:]+", greeting).group()
    body = {"messages": [{"role": "user", "content": "Count to fifty."}], "max_tokens": 60, "temperature": 0,
            "stream": True}
    request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as stream:
        stream.readline()
        process.send_signal(signal.SIGTERM)
        rest = stream.read()
    assert rest.rstrip().endswith(b"data: [DONE]")
    process.communicate(timeout=60)
    assert process.returncode == 0


def page_faults(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return int(fields[7]) + int(fields[9])  # without and with reading


def test_the_first_request_finds_a_warm_model(sixfold, smollm2):
    """What a first pass touches first is touched before the port opens, and is counted nowhere."""
    process = sixfold.start("serve", smollm2, "--port", 0, "--threads", 2, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    try:
        base = re.search(r"http://[0-9.:]+", process.stdout.readline()).group()
        assert urllib.request.urlopen(base + "/health", timeout=60).status == 200
        metrics = urllib.request.urlopen(base + "/metrics", timeout=60).read().decode()
        for name in ("prompt_tokens_total", "generation_tokens_total", "steps_total"):
            found = re.search(rf"^sixfold_(?:engine_)?{name}{{[^}}]*}} (\S+)$", metrics, re.MULTILINE)
            assert found is None or float(found.group(1)) == 0, found.group(0)
        faults = []
        for _ in range(3):
            before = page_faults(process.pid)
            body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
            request = urllib.request.Request(base + "/v1/chat/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=120).read()
            faults.append(page_faults(process.pid) - before)
        assert faults[0] <= 300 + 2 * faults[-1], faults
    finally:
        process.kill()
        process.communicate()


def test_metrics_are_protected_with_a_key_only(sixfold, smollm2):
    answer = sixfold("serve", smollm2, "--port", 0, "--protect-metrics")
    assert answer.code == 2 and "--api-key" in answer.err and "--protect-metrics" in answer.err


@pytest.mark.parametrize("host, said, unsaid", [
    ("203.0.113.7", ["no interface of this machine has the address 203.0.113.7", "--host"], "--port"),
    ("no-such-host.invalid", ["'no-such-host.invalid'", "neither an address nor a name", "--host"], "--port"),
    ("256.1.1.1", ["'256.1.1.1'", "--host"], "--port")])
@pytest.mark.parametrize("port", [0, 8765])
def test_an_address_that_is_not_here_is_said_before_the_model_is_loaded(sixfold, smollm2, host, said, unsaid, port):
    answer = sixfold("serve", smollm2, "--host", host, "--port", port)
    assert answer.code == 2 and "loaded in" not in answer.err and "Cannot assign" not in answer.err, answer.err
    for text in said:
        assert text in answer.err, answer.err
    assert unsaid not in answer.err, answer.err


def test_a_port_taken_at_a_name_is_said_before_the_model_is_loaded(sixfold, smollm2):
    family, kind, _, _, address = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as taken:
        taken.bind(address)
        taken.listen()
        port = taken.getsockname()[1]
        answer = sixfold("serve", smollm2, "--host", "localhost", "--port", port)
    assert answer.code == 1 and f"{port} is in use" in answer.err and "--port" in answer.err and "loaded in" not in answer.err, answer.err


def test_a_taken_port_is_said_before_the_model_is_loaded(sixfold, smollm2):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        answer = sixfold("serve", smollm2, "--port", port)
        assert answer.code == 1 and str(port) in answer.err and "--port" in answer.err
        assert time.monotonic() - start < 10
