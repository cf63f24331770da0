"""Chat through openai-python: what must hold whatever the model says."""
import json
import math

import openai
import pytest

import raw_http

ASK = [{"role": "user", "content": "Tell me a story about a fox, in a few words."}]


def test_models(client, model):
    listed = client.models.list().data
    assert listed[0].id == model and listed[0].object == "model"
    assert listed[0].root and listed[0].max_model_len > 0
    assert client.models.retrieve(model).id == model


def test_chat(client, model, server):
    fingerprint = json.loads(raw_http.request(server.url("/version"))[2])["fingerprint"]  # waits until it is known
    answer = client.chat.completions.create(model=model, messages=ASK, max_tokens=12, temperature=0)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == model and answer.system_fingerprint == fingerprint and answer.created > 1_700_000_000
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0


def collect(stream):
    """Joins a stream by choice and checks the contract of its chunks."""
    texts, finishes, roles, first = {}, {}, {}, None
    for chunk in stream:
        first = first or chunk
        assert (chunk.id, chunk.created, chunk.model) == (first.id, first.created, first.model)
        for choice in chunk.choices:
            assert choice.index not in finishes, "news after the finish"
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            assert "\ufffd" not in (choice.delta.content or ""), "half a character"
            if choice.delta.role:
                assert choice.index not in roles, "the role comes once"
                roles[choice.index] = choice.delta.role
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert set(roles.values()) == {"assistant"} and roles.keys() == finishes.keys() == texts.keys()
    return texts, finishes


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 7}, {"temperature": 1.5, "seed": -3, "top_p": 0.9}])
def test_streamed_text_is_the_answer(client, model, sampling):
    ask = dict(model=model, messages=ASK, max_tokens=24, **sampling)
    whole = client.chat.completions.create(**ask).choices[0]
    texts, finishes = collect(client.chat.completions.create(**ask, stream=True))
    assert texts == {0: whole.message.content.removesuffix("\ufffd")} or texts == {0: whole.message.content}
    assert finishes == {0: whole.finish_reason}


def test_usage_only_when_asked(client, model):
    ask = dict(model=model, messages=ASK, max_tokens=6, temperature=0, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in client.chat.completions.create(**ask))
    chunks = list(client.chat.completions.create(**ask, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    whole = client.chat.completions.create(**{**ask, "stream": False})
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump()


def test_the_sdk_accumulates_a_stream(client, model):
    with client.chat.completions.stream(model=model, messages=ASK, max_tokens=8, temperature=0) as stream:
        for _ in stream:
            pass
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:  # the SDK's way to say "length"
            final = cut.completion
    assert final.choices[0].message.role == "assistant" and final.choices[0].finish_reason in ("stop", "length")


def test_logprobs(client, model):
    ask = dict(model=model, messages=ASK, max_tokens=6, temperature=0)
    whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0]
    entries = whole.logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).decode(errors="replace") == whole.message.content
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob), "greedy takes the likeliest"
        ordered = [top.logprob for top in entry.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
    alone = client.chat.completions.create(**ask, logprobs=True).choices[0].logprobs.content
    assert alone and all(entry.top_logprobs == [] for entry in alone)
    streamed = []
    for chunk in client.chat.completions.create(**ask, logprobs=True, top_logprobs=3, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert [e.token for e in streamed] == [e.token for e in entries]
    assert all(math.isclose(a.logprob, b.logprob, abs_tol=1e-6) for a, b in zip(streamed, entries))
    assert client.chat.completions.create(**ask).choices[0].logprobs is None


def test_stop(client, model):
    ask = dict(model=model, messages=ASK, max_tokens=24, temperature=0)
    text = client.chat.completions.create(**ask).choices[0].message.content
    stop = text[4:7]  # something that the same answer will say again
    for value in (stop, ["never said", stop]):
        choice = client.chat.completions.create(**ask, stop=value).choices[0]
        assert choice.finish_reason == "stop" and choice.stop_reason == stop
        assert choice.message.content == text[:text.index(stop)]
        texts, finishes = collect(client.chat.completions.create(**ask, stop=value, stream=True))
        assert texts[0] == choice.message.content and finishes[0] == "stop"


def test_n(client, model):
    ask = dict(model=model, messages=ASK, max_tokens=8, n=3, seed=5, temperature=1.0)
    whole = client.chat.completions.create(**ask)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) > 1, "choices are drawn apart"
    texts, _ = collect(client.chat.completions.create(**ask, stream=True))
    assert texts == {c.index: c.message.content for c in whole.choices} or any("\ufffd" in c.message.content for c in whole.choices)


def test_lengths(client, model):
    exact = client.chat.completions.create(model=model, messages=ASK, max_completion_tokens=5, temperature=0,
                                           extra_body={"ignore_eos": True, "min_tokens": 5})
    assert exact.choices[0].finish_reason == "length" and exact.usage.completion_tokens == 5


def test_what_clients_send_besides(client, model):
    answer = client.chat.completions.create(
        model=model, max_tokens=2, store=False, user="u", metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=None,
        response_format={"type": "text"}, modalities=["text"], logit_bias={}, top_p=None, seed=None, stop=None,
        messages=[{"role": "developer", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                  {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "again"}],
        extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "chat_template_kwargs": {"enable_thinking": False}})
    assert answer.usage.completion_tokens >= 1
