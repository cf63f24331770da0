"""Fields that clients of other servers send, on both endpoints."""
import openai
import pytest

import raw_http

ASK = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}, "/v1/completions": {"prompt": "Once"}}
GREEDY = {"temperature": 0, "max_tokens": 3}


@pytest.fixture(params=list(ASK))
def ask(server, request):
    def post(**fields):
        return raw_http.request(server.url(request.param), {**ASK[request.param], **fields})
    return post


def text_of(answer):
    choice = raw_http.json.loads(answer[2])["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def error_of(answer):
    assert answer[0] == 400, answer[2]
    return raw_http.json.loads(answer[2])["error"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "num_predict", "max_new_tokens"])
def test_names_of_the_answers_length(ask, name):
    status, _, text = ask(temperature=0, ignore_eos=True, **{name: 5})
    assert status == 200 and raw_http.json.loads(text)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("alias,field,value", [("repeat_penalty", "repetition_penalty", 1.5), ("random_seed", "seed", 7),
                                               ("stop_sequences", "stop", ["e"]), ("min_new_tokens", "min_tokens", 4)])
def test_an_alias_is_its_field(ask, alias, field, value):
    sampled = {"max_tokens": 8, "seed": 3} if field != "seed" else {"max_tokens": 8}
    by_alias, by_field = ask(**sampled, **{alias: value}), ask(**sampled, **{field: value})
    assert by_alias[0] == by_field[0] == 200, by_alias[2]
    assert text_of(by_alias) == text_of(by_field)
    assert "x-sixfold-ignored" not in by_alias[1]


def test_an_alias_beside_its_field(ask):
    assert ask(**GREEDY, repetition_penalty=1.1, repeat_penalty=1.1)[0] == 200
    error = error_of(ask(**GREEDY, repetition_penalty=1.1, repeat_penalty=1.2))
    assert error["param"] == "repeat_penalty" and "repetition_penalty" in error["message"]
    assert error_of(ask(max_tokens=5, n_predict=6))["param"] == "n_predict"


@pytest.mark.parametrize("field,value", [
    ("typical_p", 0.9), ("mirostat", 2), ("mirostat_tau", 5.0), ("dry_multiplier", 0.8), ("xtc_probability", 0.5), ("tfs_z", 0.9),
    ("top_a", 0.2), ("epsilon_cutoff", 3), ("dynatemp_range", 0.5), ("no_repeat_ngram_size", 3), ("stop_regex", "a+"),
    ("lora_path", "adapter"), ("grammar", "root ::= x"), ("regex", "a"), ("ebnf", "a"), ("guided_json", {}), ("json_schema", {}),
    ("samplers", ["top_k"]), ("best_of", 2), ("use_beam_search", True), ("length_penalty", 0.5),
])
def test_what_is_not_served_is_refused_by_name(ask, field, value):
    error = error_of(ask(**GREEDY, **{field: value}))
    assert error["param"] == field and field in error["message"] and error["code"] == "unsupported_parameter"


def test_values_that_ask_for_nothing_pass(ask):
    status, headers, text = ask(
        **GREEDY, typical_p=1, mirostat=0, mirostat_tau=5, dry_multiplier=0, dry_base=1.75, xtc_probability=0, xtc_threshold=0.1, tfs_z=1,
        no_repeat_ngram_size=0, use_beam_search=False, length_penalty=1.0, best_of=1, no_stop_trim=False, return_hidden_states=False,
        lora_path=None, session_params=None, regex=None, response_format={"type": "text"}, user="someone", store=False, unheard_of=None)
    assert status == 200, text
    assert "x-sixfold-ignored" not in headers


def test_unknown_names_come_back_in_a_header(ask):
    for stream in (False, True):
        status, headers, text = ask(**GREEDY, stream=stream, zzz=1, **{"a\r\nx-evil: 1": [], "long" * 1000: {}})
        assert status == 200, text
        assert headers["x-sixfold-ignored"] == "a%0D%0Ax-evil%3A%201, " + "long" * 12 + "..., zzz"
        assert "x-evil" not in headers


def test_the_sdk_shows_the_header(client, model):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK["/v1/chat/completions"]["messages"], max_tokens=2, extra_body={"no_such_field": True})
    assert raw.headers["x-sixfold-ignored"] == "no_such_field" and raw.parse().choices
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="x", extra_body={"typical_p": 0.5})
    assert caught.value.param == "typical_p"
