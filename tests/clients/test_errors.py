"""Every refusal arrives as the SDK's own exception, in OpenAI's form."""
import json

import openai
import pytest

import raw_http

ASK = [{"role": "user", "content": "hi"}]

BAD_FIELDS = [
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("n", 0), ("n", 129), ("n", "2"),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_completion_tokens", 0), ("presence_penalty", 3),
    ("frequency_penalty", -3), ("stop", [""]), ("stop", 5), ("stop", ["x"] * 17), ("seed", "x"), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": 101}), ("top_logprobs", 3), ("logprobs", "yes"), ("stream", "yes"),
    ("response_format", {"type": "json_object"}), ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("modalities", ["audio"]),
]
BAD_EXTRA_FIELDS = [
    ("top_k", -2), ("min_p", 1.5), ("repetition_penalty", 0), ("min_tokens", -1), ("ignore_eos", "yes"), ("stop_token_ids", [-1]),
    ("guided_json", {}), ("structured_outputs", {}), ("prompt_logprobs", 1), ("use_beam_search", True), ("logits_processors", ["x"]),
    ("chat_template_kwargs", 5),
]


def check(error, param, code=None):
    assert error.status_code == 400
    body = error.response.json()["error"]
    assert set(body) >= {"message", "type", "param", "code"}
    assert body["type"] == "invalid_request_error" and body["param"] == param and param in body["message"]
    assert error.param == param
    if code:
        assert body["code"] == code


@pytest.mark.parametrize("field,value", BAD_FIELDS)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields(client, model, field, value, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": model, "messages": ASK, "stream": stream, "extra_body": {field: value}})
    check(caught.value, field)


@pytest.mark.parametrize("field,value", BAD_EXTRA_FIELDS)
def test_bad_fields_beyond_openai(client, model, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=ASK, extra_body={field: value})
    check(caught.value, field)


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], 5, {}, [10**9]])
def test_bad_prompts(client, model, prompt):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=prompt)
    check(caught.value, "prompt")


@pytest.mark.parametrize("messages,param", [
    ([], "messages"), ("hi", "messages"), ([{"role": 5, "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"), ([{"content": "x"}], "messages[0].role"),
])
def test_bad_messages(client, model, messages, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=messages)
    check(caught.value, param)


def test_unknown_model(client):
    for call in (lambda: client.chat.completions.create(model="no-such-model", messages=ASK),
                 lambda: client.completions.create(model="no-such-model", prompt="x"),
                 lambda: client.models.retrieve("no-such-model")):
        with pytest.raises(openai.NotFoundError) as caught:
            call()
        assert caught.value.code == "model_not_found"


def test_context_overflow(client, model):
    limit = client.models.retrieve(model).max_model_len
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=ASK, max_tokens=limit, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert f"maximum context length is {limit} tokens" in caught.value.message
        assert f"{limit} in the completion" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=[1] * limit, max_tokens=1)
    assert caught.value.code == "context_length_exceeded" and f"{limit} in the prompt" in caught.value.message


def test_stream_options_without_stream(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=ASK, stream_options={"include_usage": True})
    check(caught.value, "stream_options")


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"{\"messages\": NaN}", b"{\"model\": \"\xff\"}", b"{\"model\": \"\\ud800\"}",
    b"{\"a\":" + b"[" * 1000 + b"]" * 1000 + b"}", b"[" * 100_000,
])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_bodies_that_are_no_request(server, path, body):
    status, _, text = raw_http.request(server.url(path), body, method="POST")
    assert status == 400 and json.loads(text)["error"]["code"] == "invalid_json"


def test_large_bodies(server):
    status, _, text = raw_http.request(server.url("/v1/completions"), {"prompt": "x", "max_tokens": 1, "pad": "y" * 10_000_000})
    assert status == 200, text
    status, _, text = raw_http.request(server.url("/v1/completions"), {"prompt": "x", "pad": "y" * 11_000_000})
    assert status == 413 and json.loads(text)["error"]["code"] == "request_too_large"
    status, _, text = raw_http.request(server.url("/v1/completions"), {"prompt": "word " * 1_900_000})
    assert status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded"


def test_routes(server):
    status, _, text = raw_http.request(server.url("/v1/nothing"))
    assert status == 404 and json.loads(text)["error"]["type"] == "invalid_request_error"
    status, headers, text = raw_http.request(server.url("/v1/chat/completions"))
    assert status == 405 and "POST" in headers["allow"] and json.loads(text)["error"]["code"] == "method_not_allowed"
    status, headers, _ = raw_http.request(server.url("/v1/chat/completions"), method="OPTIONS")
    assert status == 204 and headers["access-control-allow-origin"] == "*"
    status, headers, _ = raw_http.request(server.url("/v1/models"), headers={"x-request-id": "mine"})
    assert status == 200 and headers["x-request-id"] == "mine"
    assert raw_http.request(server.url("/health"))[0] == 200
    assert set(json.loads(raw_http.request(server.url("/version"))[2])) >= {"version", "fingerprint"}


def test_http2_preface_is_refused(server):
    with raw_http.connect(server.port) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert raw_http.request(server.url("/health"))[0] == 200


def test_metrics(server, client, model):
    before = raw_http.metric(server.origin, "vllm:generation_tokens_total")
    client.completions.create(model=model, prompt="x", max_tokens=3, extra_body={"ignore_eos": True})
    assert raw_http.metric(server.origin, "vllm:generation_tokens_total") >= before + 3
    for name in ("time_to_first_token_seconds_count", "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count",
                 "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", "num_preemptions_total"):
        assert raw_http.metric(server.origin, "sixfold_" + name) == raw_http.metric(server.origin, "vllm:" + name)


def test_api_key(start_server):
    with start_server("--api-key", "sk-right", api_key="sk-wrong") as server:
        with pytest.raises(openai.AuthenticationError) as caught:
            server.client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert raw_http.request(server.url("/metrics"))[0] == 200
        assert raw_http.request(server.url("/health"))[0] == 200
        assert server.client.with_options(api_key="sk-right").models.list().data
