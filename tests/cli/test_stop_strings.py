"""Stop strings that lie in special tokens, which the text leaves out: chat, completions, streams and the command line.

A token is forced by a bias, so that answers are known without a model's help.
"""
import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

SEPARATOR, SECOND = "<file_sep>", "<repo_name>"


@pytest.fixture(scope="module")
def ids(sixfold, smollm2):
    def one(text):
        (token,) = sixfold("tokenize", smollm2, "--json", "--no-special", stdin=text).json()["ids"]
        return token

    return {SEPARATOR: one(SEPARATOR), SECOND: one(SECOND), "a": one("a")}


class Server:
    def __init__(self, port):
        self.origin = f"http://127.0.0.1:{port}"

    def post(self, path, **body):
        request = urllib.request.Request(self.origin + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                raw = answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        if not body.get("stream"):
            return 200, json.loads(raw)
        return 200, [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]


@contextlib.contextmanager
def serving(sixfold, model, *flags):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = sixfold.start("serve", str(model), "--port", str(port), "--quiet", *flags, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "the server did not come up"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.05)
        yield Server(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(sixfold, smollm2):
    with serving(sixfold, smollm2) as running:
        yield running


def outcome(endpoint, answer):
    """(text, finish_reason, stop_reason, tokens of the logprobs) of choice 0, streamed or not."""
    events = answer if isinstance(answer, list) else [answer]
    text, finish, reason, tokens = "", None, None, []
    for event in events:
        for choice in event["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            text += (part.get("content") if endpoint == "chat" else choice["text"]) or ""
            finish = choice["finish_reason"] or finish
            reason = choice.get("stop_reason") or reason
            logprobs = choice.get("logprobs") or {}
            tokens += [t["token"] for t in logprobs.get("content") or []] if endpoint == "chat" else logprobs.get("tokens") or []
    return text, finish, reason, tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_special_token_ends_the_answer(server, ids, endpoint, stream):
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    ask = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True} if endpoint == "chat" else {"prompt": "hi", "logprobs": 0}
    ask |= {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "stream": stream}

    def run(forced, **fields):
        status, answer = server.post(path, **ask, logit_bias={str(ids[forced]): 100}, **fields)
        assert status == 200, answer
        return outcome(endpoint, answer)

    for skip in (True, False):
        assert run(SEPARATOR, stop=SEPARATOR, skip_special_tokens=skip) == ("", "stop", SEPARATOR, [])
        # Over the border of two tokens: it is found with the second.
        shown = "" if skip else "<file"
        assert run(SEPARATOR, stop="_sep><file_", skip_special_tokens=skip)[:3] == (shown, "stop", "_sep><file_")
        # Only the third one counts; the two before it are shown, unless special tokens are left out.
        text, finish, reason, tokens = run(SEPARATOR, stop=SEPARATOR, skip_special_tokens=skip, min_tokens=3)
        assert (text, finish, reason) == ("" if skip else SEPARATOR * 2, "stop", SEPARATOR)
        text, finish, reason, tokens = run(SEPARATOR, stop=SEPARATOR, skip_special_tokens=skip, include_stop_str_in_output=True)
        assert (text, finish, reason, tokens) == (SEPARATOR, "stop", SEPARATOR, [SEPARATOR])
        # Never written: the answer goes on to its limit.
        text, finish, reason, tokens = run(SEPARATOR, stop=SECOND, skip_special_tokens=skip)
        assert (text, finish, reason) == ("" if skip else SEPARATOR * 8, "length", None)
        assert tokens == [SEPARATOR] * 8
    assert run("a", stop="aaa")[:3] == ("", "stop", "aaa")
    assert run("a", stop="aaa", min_tokens=5)[:3] == ("aa", "stop", "aaa")


def test_the_command_line_finds_it_too(sixfold, smollm2, ids):
    forced = ["--logit-bias", f"{ids[SEPARATOR]}=100", "--max-tokens", 6, "--ignore-eos", "--temperature", 0]
    stopped = sixfold("generate", smollm2, "--prompt", "hi", *forced, "--stop", SEPARATOR, "--json").json()
    assert stopped["finish_reason"] == "stop" and stopped["text"] == "" and len(stopped["token_ids"]) == 1
    late = sixfold("generate", smollm2, "--prompt", "hi", *forced, "--stop", SEPARATOR, "--min-tokens", 3, "--json").json()
    assert late["finish_reason"] == "stop" and len(late["token_ids"]) == 3
    free = sixfold("generate", smollm2, "--prompt", "hi", *forced, "--stop", SECOND, "--json").json()
    assert free["finish_reason"] == "length" and len(free["token_ids"]) == 6
    chat = sixfold("run", smollm2, "--prompt", "hi", *forced, "--stop", SEPARATOR)
    assert chat.code == 0 and chat.out.strip() == "" and "1 out" in chat.err, chat.err


def test_penalties_reach_to_the_ends_of_fp32(server):
    def status(**fields):
        return server.post("/v1/completions", prompt="hi hi hi", max_tokens=3, temperature=1, **fields)[0]

    for good in (1.2e-38, 1e-20, 2.5, 1e6, 3.4e38):
        assert status(repetition_penalty=good) == 200, good
    for bad in (0, -1, 1e-40, 5e-324, 3.5e38, 1e300):
        assert status(repetition_penalty=bad) == 400, bad
    # Neighbours: numbers that vanish in fp32, or count as 0 in the engine's float mode; never a failure of the server.
    for fields in ({"top_p": 1e-310}, {"top_p": 5e-324}, {"min_p": 1e-320}, {"temperature": 1e-40}, {"presence_penalty": 1e-320}):
        assert server.post("/v1/completions", prompt="hi", max_tokens=3, **({"temperature": 1} | fields))[0] in (200, 400), fields
