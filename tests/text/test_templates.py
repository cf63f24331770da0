"""Rendered chat templates equal to jinja2's as transformers sets it up: texts, and what is refused."""

import copy
import json
import os
import subprocess

import jinja2
import pytest

import gguf_vocab
import packages
import random_expressions
import template_cases
import tool
from transformers.utils.chat_template_utils import _compile_jinja_template  # jinja2 as transformers sets it up

TINY_TOKENIZER = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                  "pre_tokenizer": None, "post_processor": None, "decoder": None,
                  "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}}


def templates_of(name):
    config = json.loads((packages.folder(name) / "tokenizer_config.json").read_text())
    found = config.get("chat_template")
    if isinstance(found, list):
        return config, {t["name"]: t["template"] for t in found}
    return config, {"default": found} if found else {}


def special_tokens(config):
    text = {k: v if isinstance(v, str) else v["content"] for k, v in config.items() if k.endswith("_token") and v
            and not isinstance(v, bool)}
    return text


def names_developers(template):
    """Whether a string of the template's code is the role's name; the rule of src/text/chat_template.h."""
    return any(kind == "string" and text[1:-1] == "developer" for _, kind, text in jinja2.Environment().lex(template))


def reference(template, request, specials):
    """What jinja2 makes of the request by the two rules that chat_template.h adds to transformers: a developer is a system where
    the template doesn't name him, and a content that is missing is empty where the template can't do without."""
    request = copy.deepcopy(request)
    messages = [m for m in request["messages"] if isinstance(m, dict)]
    for message in messages:
        if message.get("role") == "developer" and not names_developers(template):
            message["role"] = "system"
    kind, text = rendered(template, request, specials)
    if kind != "text" and any(m.get("content") is None for m in messages):
        for message in messages:
            if message.get("content") is None:
                message["content"] = ""
        kind, text = rendered(template, request, specials)
    return kind, text


def rendered(template, request, specials):
    """("text", …), or ("raised", message) from raise_exception, or ("failed", reason)."""
    kwargs = {**specials, **request.get("chat_template_kwargs", {})}
    fixed = {key: request.get(key) for key in ("messages", "tools", "documents")}
    fixed["add_generation_prompt"] = request.get("add_generation_prompt", False)
    variables = copy.deepcopy({**kwargs, **fixed})  # Python's += in a filter changes lists in place
    try:
        return "text", _compile_jinja_template(template).render(**variables)
    except jinja2.exceptions.TemplateError as e:
        return ("raised" if type(e) is jinja2.exceptions.TemplateError else "failed"), str(e)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, AssertionError) as e:
        return "failed", str(e)


def ours(folder, template, request):
    (folder / "chat_template.jinja").write_text(template, newline="")
    messages = folder / "messages.json"
    variables = {k: v for k, v in request.items() if k != "chat_template_kwargs"}
    messages.write_text(json.dumps({**variables, **request.get("chat_template_kwargs", {})}))
    done = tool.run("render", folder, messages, check=False)
    if done.returncode == 0:
        return "text", done.stdout.decode()
    assert done.returncode in (1, 2), done.stderr
    return "failed", done.stderr.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "tokenizer.json").write_text(json.dumps(TINY_TOKENIZER))
    return path


def check(folder, template, request, specials, label):
    kind, want = reference(template, request, specials)
    got_kind, got = ours(folder, template, request)
    if kind == "text":
        assert (got_kind, got) == ("text", want), label
    else:
        assert got_kind == "failed", f"{label}: jinja2 refuses ({want}), we gave {got!r}"
        if kind == "raised":
            assert want in got, label
    return kind


NAMES = [n for n in packages.NPM if n not in ("gptoss", "llama2")]  # those two packages carry no template


@pytest.mark.parametrize("name", NAMES)
def test_published_templates(name, folder):
    config, templates = templates_of(name)
    assert templates
    (folder / "tokenizer_config.json").write_text(json.dumps(special_tokens(config)))
    kinds = []
    for which, template in templates.items():
        for label, request in template_cases.CONVERSATIONS.items():
            kinds.append(check(folder, template, request, special_tokens(config), f"{name}/{which}: {label}"))
    assert kinds.count("text") >= 8  # the comparison is of texts, not of failures


@pytest.mark.skipif("SIXFOLD_TEST_SMOLLM2" not in os.environ, reason="SIXFOLD_TEST_SMOLLM2 names SmolLM2's .gguf")
def test_smollm2_template(folder):
    vocab = gguf_vocab.of_gguf(os.environ["SIXFOLD_TEST_SMOLLM2"])
    specials = {"bos_token": vocab["tokens"][vocab["bos_id"]], "eos_token": vocab["tokens"][vocab["eos_id"]]}
    (folder / "tokenizer_config.json").write_text(json.dumps(specials))
    for label, request in template_cases.CONVERSATIONS.items():
        check(folder, vocab["chat_template"], request, specials, label)


@pytest.mark.parametrize("number, template", list(enumerate(template_cases.snippets())))
def test_snippets(number, template, folder):
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(specials))
    check(folder, template, template_cases.DATA, specials, template)


SEPARATOR = "\x1e"


def test_random_expressions(folder):
    """Slices, filters, tests, methods, operators and formats of Python, over values of every sort. Those that jinja2 evaluates are
    rendered many at a time, those that it refuses one at a time, and fewer of them."""
    (folder / "tokenizer_config.json").write_text("{}")
    request = conversation_of(random_expressions.VARIABLES)
    good, bad = [], []
    for expression in random_expressions.expressions(3000, seed=11):
        kind, text = rendered("{{ " + expression + " }}", request, {})
        if kind != "text":
            bad.append((expression, text))
        elif " at 0x" not in text:  # a function or generator, printed
            good.append((expression, text))
    assert len(good) > 1500 and len(bad) > 900
    for group in range(0, len(good), 200):
        wrong = differences(folder, request, good[group:group + 200])
        assert not wrong, f"{len(wrong)} of 200 expressions differ: " + "\n".join(wrong[:20])
    for expression, reason in bad[:60]:
        kind, got = ours(folder, "{{ " + expression + " }}", request)
        assert kind == "failed", f"{expression}: jinja2 refuses ({reason}), we gave {got!r}"


def conversation_of(variables):
    return template_cases.conversation([template_cases.user("x")], chat_template_kwargs=variables)


def differences(folder, request, cases):
    """What is wrong in a group of (expression, text): found by halving where the group fails as a whole."""
    kind, got = ours(folder, SEPARATOR.join("{{ " + e + " }}" for e, _ in cases) + SEPARATOR, request)
    if kind == "text":
        parts = got.split(SEPARATOR)[:-1]
        return [f"{e}: jinja2 {want!r}, we {part!r}" for (e, want), part in zip(cases, parts, strict=True) if part != want]
    if len(cases) == 1:
        return [f"{cases[0][0]}: jinja2 {cases[0][1]!r}, we refuse: {got}"]
    half = len(cases) // 2
    return differences(folder, request, cases[:half]) + differences(folder, request, cases[half:])


HOSTILE = {
    "doubling": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "doubling in a block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "shared lists": "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "big range": "{% for i in range(10**12) %}x{% endfor %}",
    "long loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "repeat": "{{ 'x' * 10**12 }}",
    "repeat list": "{{ ([1] * 10**12)|length }}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "center": "{{ 'x'|center(10**12) }}",
    "ljust": "{{ 'x'.ljust(10**12) }}",
    "width": "{{ '%1000000000000d' % 1 }}",
    "format width": "{{ '{:>1000000000000}'.format('x') }}",
    "replace": "{% set a = 'x' * 10**7 %}{{ a.replace('x', a) }}",
    "join": "{% set a = 'x' * 10**7 %}{{ a.join('y' * 10**6) }}",
    "indent": "{{ ('\n' * 10**7)|indent(1000) }}",
    "count": "{{ 'abc'.count('') }}{% for i in range(10**12) %}{% endfor %}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 10**6 }}{% endfor %}",
    "raw output": "{% for i in range(99999) %}" + "raw text " * 9999 + "{% endfor %}",
    "chain": "{{ a" + ".b" * 100000 + " }}",
    "sum": "{{ 1" + "+1" * 100000 + " }}",
    "parentheses": "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "nested ifs": "{% if 1 %}" * 20000 + "{% endif %}" * 20000,
    "elifs": "{% if 0 %}" + "{% elif 0 %}" * 50000 + "{% endif %}",
    "slices": "{{ list|slice(10**12)|list }}",
    "doubling by slices": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x[:] + ns.x[::-1] %}{% endfor %}{{ ns.x }}",
    "sum of lists": "{% set x = [[1] * 10000] * 10000 %}{{ x|sum(start=[])|length }}",
    "sum doubling": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|sum(start=[]) %}{% endfor %}",
    "tuples": "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x }}",
    "tuple repeat": "{{ ((1,) * 10**12)|length }}",
    "batch fill": "{{ [1]|batch(10**12, 'x')|list }}",
    "big list": "{{ range(10**12)|list }}",
    "tabs": "{{ ('\t' * 10**7).expandtabs(10**12) }}",
    "star width": "{{ '%*d' % (10**12, 1) }}",
    "precision": "{{ '{:.999999999999}'.format(1.0) }}",
    "escape": "{% set ns = namespace(x='<') %}{% for i in range(60) %}{% set ns.x = ns.x|e|string ~ ns.x|forceescape %}{% endfor %}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_templates_end_soon(name, folder):
    template = HOSTILE[name]
    (folder / "chat_template.jinja").write_text(template)
    (folder / "messages.json").write_text(json.dumps(template_cases.DATA))
    limited = ["prlimit", f"--as={2 << 30}", "--cpu=60", tool.binary(), "render", str(folder), str(folder / "messages.json")]
    done = subprocess.run(limited, capture_output=True, timeout=120)
    assert done.returncode in (1, 2), (done.returncode, done.stdout[:200], done.stderr[:500])
    assert done.stderr
