"""The older endpoint, which benchmark clients use."""
import pytest


def test_text_and_token_ids(client, model):
    ask = dict(model=model, max_tokens=5, temperature=0)
    text = client.completions.create(prompt="Once upon a time", **ask)
    assert text.object == "text_completion" and text.id.startswith("cmpl-")
    assert text.choices[0].finish_reason in ("stop", "length")
    ids = client.completions.create(prompt=[1, 2, 3], **ask)
    assert ids.usage.prompt_tokens == 3
    many = client.completions.create(prompt=[[1, 2, 3], [4, 5]], **ask)
    assert many.usage.prompt_tokens == 5 and [c.index for c in many.choices] == [0, 1]
    assert many.choices[0].text == ids.choices[0].text, "alone or together: the same"
    several = client.completions.create(prompt=["Once upon a time", "The"], n=2, **ask)
    assert [c.index for c in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == text.choices[0].text


def test_default_length_is_16(client, model):
    answer = client.completions.create(model=model, prompt="One two three", extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16 and answer.choices[0].finish_reason == "length"


def test_stream_is_the_answer(client, model):
    ask = dict(model=model, prompt="Once upon a time", max_tokens=16, temperature=0.8, seed=11)
    whole = client.completions.create(**ask)
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_logprobs(client, model):
    prompt = "Once upon a time"
    choice = client.completions.create(model=model, prompt=prompt, max_tokens=4, temperature=0, logprobs=2).choices[0]
    logprobs = choice.logprobs
    count = len(logprobs.tokens)
    assert count == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset[0] == len(prompt)
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert top[token] == pytest.approx(value) and 2 <= len(top) <= 3
    none = client.completions.create(model=model, prompt=prompt, max_tokens=2, temperature=0, logprobs=0).choices[0]
    assert all(list(top) == [token] for token, top in zip(none.logprobs.tokens, none.logprobs.top_logprobs))


def test_logit_bias_forces_a_token(client, model):
    free = client.completions.create(model=model, prompt=[10, 11], max_tokens=3, temperature=0, logprobs=0)
    assert free.usage.completion_tokens >= 1
    # A scripted answer does not change; that the field is taken is what is tested here.
    client.completions.create(model=model, prompt=[10, 11], max_tokens=3, temperature=0, logit_bias={"12": 100})
