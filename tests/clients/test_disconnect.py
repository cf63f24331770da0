"""Clients that vanish: their blocks come back, the next request answers."""
import concurrent.futures
import random
import socket
import struct
import time

import raw_http

CLIENTS = 200


def vanish(port, seed):
    """One client that goes away at a point of its own: inside its request, right after it, or somewhere in the answer."""
    rng = random.Random(seed)
    streaming = rng.random() < 0.5
    body = {"messages": [{"role": "user", "content": "count " * rng.randrange(1, 40)}], "max_tokens": 200, "stream": streaming,
            "ignore_eos": True, "n": rng.randrange(1, 3)}
    sent = raw_http.post_bytes("/v1/chat/completions", body)
    with raw_http.connect(port) as raw:
        point = rng.randrange(4)
        raw.sendall(sent[:rng.randrange(len(sent))] if point == 0 else sent)
        if point == 2:
            time.sleep(rng.random() * 0.3)
        if point == 3 and streaming:
            raw.recv(rng.randrange(1, 3000))
        if rng.random() < 0.5:  # a reset instead of an orderly end
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_blocks_return_after_200_clients_vanish(server, client, model):
    generated = raw_http.metric(server.origin, "sixfold_generation_tokens_total")
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda seed: vanish(server.port, seed), range(CLIENTS)))
    deadline = time.monotonic() + 60
    quiet = 0
    while quiet < 3:
        busy = [raw_http.metric(server.origin, "sixfold_" + name)
                for name in ("kv_blocks_used", "num_requests_running", "num_requests_waiting")]
        quiet = quiet + 1 if busy == [0, 0, 0] else 0
        assert time.monotonic() < deadline, f"blocks, running, waiting: {busy}"
        time.sleep(0.2)
    spent = raw_http.metric(server.origin, "sixfold_generation_tokens_total") - generated
    assert spent < CLIENTS * 200 / 2, "what nobody waits for is not computed"
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "still there?"}], max_tokens=3)
    assert answer.usage.completion_tokens >= 1


def test_breaking_out_of_a_stream_frees_it(server, client, model):
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "go on"}], stream=True,
                                            max_tokens=400, extra_body={"ignore_eos": True})
    for _ in stream:
        break
    stream.close()
    deadline = time.monotonic() + 20
    while raw_http.metric(server.origin, "sixfold_kv_blocks_used") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
