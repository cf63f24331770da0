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


def test_a_taken_port_is_said_before_the_model_is_loaded(sixfold, smollm2):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        answer = sixfold("serve", smollm2, "--port", port)
        assert answer.code == 1 and str(port) in answer.err and "--port" in answer.err
        assert time.monotonic() - start < 10
