"""Conversations and small templates that test_templates.py renders both ways."""

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather <now> & \"here\" – in °C",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Städte\nund Orte"},
            "days": {"type": "array", "items": {"type": "integer"}, "default": [1, 2.5, None, True]},
            "unit": {"type": "string", "enum": ["c", "f"]}}},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {"id": "call_0001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2], "x": {"a": None, "b": 0.1}}}}
CALL_TEXT = {"id": "123456789", "type": "function",
             "function": {"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"}}

# Arguments whose order of keys is not that of the alphabet, as a model wrote them.
ORDERED_CALL = {"type": "function", "id": "call_0002", "function": {
    "name": "get_weather", "arguments": {"zip": "8001", "city": "Zürich", "at": {"year": 2030, "day": 1}}}}
RESULT = {"role": "tool", "tool_call_id": "call_0002", "name": "get_weather", "content": "21"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def conversation(messages, prompt=True, **more):
    return {"messages": messages, "add_generation_prompt": prompt, **more}


CONVERSATIONS = {
    "one user": conversation([user("Hello!")]),
    "no prompt": conversation([user("Hello!")], False),
    "system": conversation([system("Be brief."), user("Why is the sky blue?")]),
    "three turns": conversation([system(" padded \n"), user("a"), assistant("b"), user("c"), assistant(" d "), user("e\n")]),
    "unicode and html": conversation([user("<b>&amp;\"quotes\" 'single' \\n ünïcödé 🤷‍♀️ \u2028 {{ x }} {% y %}")]),
    "white space": conversation([user("\n\n  indented\n\ttab\n\n")]),
    "tools": conversation([user("Weather?")], tools=TOOLS),
    "tools and system": conversation([system("You can call."), user("Weather?")], tools=TOOLS),
    "tool call": conversation([user("Weather?"), assistant(None, tool_calls=[CALL]),
                               {"role": "tool", "name": "get_weather", "tool_call_id": "call_0001", "content": "21 °C"}], tools=TOOLS),
    "tool call with text": conversation([user("Weather?"), assistant("Let me see.", tool_calls=[CALL_TEXT]),
                                         {"role": "tool", "name": "get_weather", "tool_call_id": "123456789", "content": "21"},
                                         assistant("It is 21."), user("Thanks")], tools=TOOLS),
    "two calls": conversation([user("Both?"), assistant("", tool_calls=[CALL_TEXT, {**CALL_TEXT, "id": "abcdefghi"}]),
                               {"role": "tool", "tool_call_id": "123456789", "content": "1"},
                               {"role": "tool", "tool_call_id": "abcdefghi", "content": "2"}], tools=TOOLS),
    "call without tools": conversation([user("x"), assistant("", tool_calls=[CALL])]),
    "empty tools": conversation([user("x")], tools=[]),
    "thinking": conversation([user("1+1?"), assistant("<think>\nadd\n</think>\n\n2"), user("2+2?")]),
    "reasoning": conversation([user("1+1?"), assistant("2", reasoning_content="\nadd them\n"), user("2+2?"),
                               assistant("4", reasoning_content="again")], False),
    "no thinking": conversation([user("x")], chat_template_kwargs={"enable_thinking": False}),
    "kwargs": conversation([user("x")], chat_template_kwargs={"date_string": "1 Jan 2030", "tools_in_user_message": False,
                                                              "custom": [1, {"a": "b"}]}, tools=TOOLS),
    "parts": conversation([user([{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}])]),
    "image part": conversation([user([{"type": "image"}, {"type": "text", "text": "What is this?"}])]),
    "documents": conversation([user("Who?")], documents=[{"title": "T", "text": "Body <x>"}, {"title": "U", "text": "v", "n": 1}]),
    "two users": conversation([user("a"), user("b")]),
    "assistant first": conversation([assistant("a"), user("b")]),
    "system late": conversation([user("a"), system("b"), user("c")]),
    "unknown role": conversation([user("a"), {"role": "critic", "content": "b"}]),
    "no content": conversation([{"role": "user"}]),
    "null content": conversation([user(None)]),
    "number content": conversation([user(5)]),
    "no messages": conversation([]),
    "developer": conversation([{"role": "developer", "content": "d"}, user("x")]),
    "developer and system": conversation([{"role": "developer", "content": "d"}, system("s"), user("x")]),
    "developer and tools": conversation([{"role": "developer", "content": "d"}, user("x")], tools=TOOLS),
    "ordered call": conversation([user("a"), assistant(None, tool_calls=[ORDERED_CALL]), RESULT, user("b")], tools=TOOLS),
    "call without content": conversation([user("a"), {"role": "assistant", "tool_calls": [ORDERED_CALL]}, RESULT], tools=TOOLS),
    "ordered calls": conversation([user("a"), assistant(None, tool_calls=[ORDERED_CALL, CALL]), RESULT, RESULT,
                                   assistant(None, tool_calls=[ORDERED_CALL]), RESULT, assistant("c"), user("d")], tools=TOOLS),
    "function role": conversation([user("a"), assistant(None, function_call=ORDERED_CALL["function"]),
                                   {"role": "function", "name": "get_weather", "content": "{\"z\": 1, \"a\": 2}"}]),
    "ipython role": conversation([user("a"), assistant(None, tool_calls=[ORDERED_CALL]), {"role": "ipython", "content": "21"}]),
    "tool dict": conversation([user("a"), assistant(None, tool_calls=[ORDERED_CALL]), {"role": "tool", "content": {"z": 1, "a": [2]}}]),
    "null without calls": conversation([user("a"), assistant(None), user("b")]),
    "reasoning fields": conversation([user("a"), assistant("b", reasoning="r1", reasoning_content="r2", thinking="r3"), user("c"),
                                      assistant(None, reasoning_content="r4", tool_calls=[ORDERED_CALL]), RESULT], tools=TOOLS),
    "null reasoning": conversation([user("a"), assistant("b", reasoning_content=None, tool_calls=None), user("c")]),
    "long": conversation([m for i in range(40) for m in (user(f"q{i} " * 20), assistant(f"a{i} " * 20))] + [user("end")]),
}

DATA = conversation(
    [system("S"), user("Hi there"), assistant("yo", tool_calls=[CALL])], True, tools=TOOLS,
    chat_template_kwargs={
        "n": 7, "neg": -7, "f": 2.5, "big": 12345678901234567890, "t": True, "no": False, "nil": None, "s": "a,b,,c",
        "text": "  Hello World\n\tfoo  ", "list": [3, 1, 2, 3], "words": ["b", "A", "c"], "empty": [], "d": {"z": 1, "a": [1, 2], "items": 3},
        "html": "<a href=\"x\">&'</a>", "uni": "Ünïcödé 😀", "nested": {"x": {"y": [{"z": "deep"}]}}, "lines": "a\nb\r\n\nc\n",
        "floats": [1.0, 0.1, 1e16, 1e-5, 123456789.123, -0.0, 1e300, 5e-324, 100.0]})

SNIPPETS = r"""
{{ n }} {{ neg }} {{ f }} {{ big }} {{ t }} {{ no }} {{ nil }} {{ s }} {{ list }} {{ d }} {{ words }} {{ empty }} {{ missing }}|
{{ floats }} {{ floats|tojson }} {% for x in floats %}{{ x }} {% endfor %}
{{ n ~ nil ~ t ~ f ~ missing ~ list ~ d }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ tools|tojson(indent=4) }} {{ html|tojson }} {{ uni|tojson }} {{ uni|tojson(ensure_ascii=True) }}
{{ d|tojson(separators=(",", ":")) }} {{ d|tojson(sort_keys=true) }} {{ {}|tojson }} {{ []|tojson(indent=1) }} {{ {1: 2, none: 3, 1.5: 5}|tojson }} {{ {true: 4}|tojson }}
{{ messages|tojson }} {{ "\u2028\x7f\x01\"\\/"|tojson }} {{ nil|tojson }} {{ text|tojson }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }},{% endfor %} {% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}
{% for k, v in d|dictsort %}{{ k }}{{ v }};{% endfor %} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get("q") }} {{ d.get("q", "dflt") }} {{ d.get("z") }} {{ d["items"] }}
{% for tool in tools %}{% for name, p in tool.function.parameters.properties.items() %}{{ name }}:{{ p.type }}{% if p['items'] %}[{{ p['items'].type }}]{% endif %} {% endfor %}{% endfor %}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ s.split(",") }}|{{ s.split(",", 1) }}|{{ text.split() }}|{{ text.split(none, 1) }}|{{ s.rsplit(",", 1) }}|{{ "xxaxx".strip("x") }}
{{ text.upper() }}|{{ text.lower() }}|{{ text.title() }}|{{ "hELLO wORLD".capitalize() }}|{{ "aB".swapcase() }}|{{ text|trim }}|{{ "xaxx"|trim("x") }}|{{ text|upper|lower|title|capitalize }}
{{ s.replace(",", "-") }}|{{ s.replace(",", "-", 2) }}|{{ s|replace(",", "+") }}|{{ "aaa".replace("a", "aa") }}|{{ "abc".replace("", "-") }}
{{ s.startswith("a") }} {{ s.endswith(("c", "d")) }} {{ s.find("b") }} {{ s.find("zz") }} {{ uni.find("😀") }} {{ uni.rfind("d") }} {{ s.count(",") }} {{ s.index("b") }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ", ".join(words) }} {{ words|join(", ") }} {{ list|join }} {{ messages|join(";", attribute="role") }}
{{ "1".isdigit() }} {{ "a".isalpha() }} {{ " ".isspace() }} {{ "".isdigit() }} {{ "Ab".isupper() }} {{ "AB1".isupper() }} {{ "ab".islower() }} {{ "a1".isalnum() }}
{{ "prefix-x".removeprefix("prefix-") }} {{ "x.txt".removesuffix(".txt") }} {{ "a=b=c".partition("=") }} {{ "a=b=c".rpartition("=") }} {{ "7".zfill(3) }} {{ "a".ljust(3) }}| {{ "a".rjust(3, "*") }} {{ "ab".center(7) }}|
{{ "%s is %d years, %.2f%%"|format("Bob", 42, 3.14159) }} {{ "%s-%s" % ("a", 1) }} {{ "{} and {}".format("x", 2) }} {{ "{0}{1}{0}".format("a", "b") }} {{ "{name}".format(name="N") }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ 1 + 2.0 }} {{ "ab" * 3 }} {{ [1] * 3 }} {{ [1] + [2, 3] }} {{ 3 - 5 }} {{ -n }} {{ true + 1 }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ "1" == 1 }} {{ none == false }} {{ [1, 2] == [1, 2] }} {{ {"a": 1} == {"a": 1.0} }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 2 >= 2 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ missing == none }}
{{ "a" in s }} {{ 3 in list }} {{ "z" in d }} {{ "q" not in d }} {{ 3 not in list }} {{ "x" in missing }} {{ 1 in [true] }} {{ not 1 in [2] }}
{{ t and n }} {{ no or s }} {{ not t }} {{ nil or "x" }} {{ empty and 1 }} {{ n if t else "e" }} {{ "i" if no }}| {{ (1 if no else 2) + 3 }}
{{ list[0] }} {{ list[-1] }} {{ list[1:] }} {{ list[:-1] }} {{ list[::2] }} {{ list[::-1] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[0] }} {{ s[-1] }} {{ list[10] }}| {{ messages[-1].role }} {{ messages[1:][0]["content"] }}
{{ nested.x.y[0].z }} {{ nested["x"]["y"][0]["z"] }} {{ nested.q }}| {{ nil.foo }}| {{ d.missing }}|
{{ n is number }} {{ t is number }} {{ t is boolean }} {{ n is integer }} {{ f is float }} {{ s is string }} {{ s is sequence }} {{ list is sequence }} {{ d is mapping }} {{ d is sequence }} {{ list is iterable }} {{ s is iterable }} {{ n is iterable }}
{{ missing is defined }} {{ s is defined }} {{ missing is undefined }} {{ nil is none }} {{ nil is defined }} {{ d.q is defined }} {{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ n is eq 7 }} {{ n is ne 7 }} {{ n is in list }} {{ 3 is in list }} {{ t is true }} {{ no is false }} {{ "a" is lower }} {{ nil is not none }} {{ raise_exception is callable }}
{{ list|length }} {{ s|length }} {{ uni|length }} {{ d|length }} {{ missing|length }} {{ list|count }} {{ list|first }} {{ list|last }} {{ empty|first }}| {{ list|sum }} {{ list|max }} {{ list|min }} {{ list|sort }} {{ list|sort(reverse=true) }} {{ words|sort }} {{ list|unique|list }} {{ list|reverse|list }}
{{ messages|map(attribute="role")|list }} {{ words|map("upper")|list }} {{ messages|selectattr("role", "equalto", "user")|list|length }} {{ messages|rejectattr("role", "eq", "user")|map(attribute="role")|join(",") }} {{ list|select("odd")|list }} {{ list|reject("gt", 2)|list }} {{ messages|selectattr("tool_calls", "defined")|list|length }}
{{ missing|default("d") }} {{ ""|default("d") }}| {{ ""|default("d", true) }} {{ nil|default("d") }} {{ nil|d("e", boolean=true) }} {{ "12"|int }} {{ "x"|int }} {{ "x"|int(5) }} {{ "1.5"|float }} {{ 3.7|int }} {{ 3.14159|round(2) }} {{ 2.5|round }} {{ -3|abs }} {{ n|string }} {{ nil|string }} {{ list|string }} {{ s|list }} {{ 5|float }}
{{ text|indent }}| {{ lines|indent(2, true) }}| {{ lines|indent(width=3, first=false, blank=true) }}| {{ html|e }} {{ html|escape }} {{ html|safe }} {{ html }} {{ "a b c"|wordcount }} {{ "ab"|center(6) }}|
{{ list|batch(2)|list }} {{ list|batch(3, "x")|list }} {{ list|slice(3)|list }} {{ list|slice(3, "f")|list }} {{ [["a", 1], ["b", 2]]|items if false }}{{ {"a": 1, "b": 2}|items|list }}
{% for x in list %}{{ loop.index }}/{{ loop.length }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle("a", "b") }} {% else %}none{% endfor %} {% for x in empty %}x{% else %}none{% endfor %}
{% for x in list if x > 1 %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% endif %}{% endfor %} {% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %} {% for m in messages[1:] %}{{ m.role }}{% endfor %} {% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {% for c in "héy" %}{{ c }}.{% endfor %}
{% set ns = namespace(a=1, b="x") %}{% for x in list %}{% set ns.a = ns.a + x %}{% set q = x %}{% endfor %}{{ ns.a }} {{ q is defined }} {% set q = 1 %}{% if true %}{% set q = 2 %}{% endif %}{{ q }} {% set a, b = [1, 2] %}{{ a }}{{ b }}
{% set block %}  hello {{ n }} {% endset %}[{{ block }}] {% set block | upper %}abc{% endset %}{{ block }} {% filter upper %}abc {{ s }}{% endfilter %} {% with x = 5, y = n %}{{ x + y }}{% endwith %}{{ x }}|
{% macro m(a, b=2, c="z") %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, c="q") }}{{ m(*[1, 2]) }}{% macro r(x) %}{% if x > 0 %}{{ x }}{{ r(x - 1) }}{% endif %}{% endmacro %}{{ r(3) }} {% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}
{%- for x in [{"v": 1, "c": [{"v": 2, "c": []}]}] recursive %}{{ x.v }}[{{ loop(x.c) }}]{% endfor %}
{% raw %}{{ not }} {% rendered %}{% endraw %} {# comment {{ x }} #}after {{ "{{" }} {{ '%}' }}
  {% if true %}
    indented
  {% endif %}
	{%- if true -%}   trimmed   {%- endif -%}   
next {%+ if true %} kept{% endif +%}
end
{% generation %}assistant {{ n }}{% endgeneration %}{%- generation -%}  x  {%- endgeneration -%} y
{{ "tab\tnew\nq\"s'\\ \u00e9 \x41 \101 \d \/" }} {{ 'it''s' }}{{ "multi
line" }}
{{ dict(a=1, b="x") }} {{ dict(a=1)|tojson }} {{ {"a": {"b": ["c", none, true, 1.0]}} }} {{ ["it's", 'q"q', "b\\s", "n\nl", "é\u200b"] }} {{ ("a", 1) | list }}
{{ raise_exception("custom: " ~ n) }}
{{ raise_exception({"a": 1}) }}
{{ missing.attr }}
{{ missing + "x" }}
{{ "x" + 1 }}
{{ 1 + "x" }}
{{ 1 / 0 }}
{{ missing() }}
{{ s.nomethod() }}
{{ list.append(1) }}
{{ d.update({"a": 1}) }}
{{ missing|tojson }}
{{ 5|length }}
{{ "x" < 1 }}
{{ s|nofilter }}
{{ s is notest }}
{% for x in 5 %}{% endfor %}
{% if %}{% endif %}
{{ unclosed
{% for x in list %}
{% include "other" %}
{{ messages[0]["content"][0]["text"] }}|{{ "".join(["a", "b"]) }}|{{ ["a", 1]|join("-") }}
{{ strftime_now("%Y") }} {{ strftime_now("%d %b %Y") }} {{ strftime_now("") }}|
{%- set x = messages | map(attribute='content') | select('string') | list -%}{{ x }}{{ x|length }}
{{ (messages|last).tool_calls[0].function.arguments|tojson }} {{ (messages|last)['tool_calls'][0]['function']['name'] }} {{ messages|last|tojson|length }}
{% if messages[0].role == "system" and messages[0].content is string and messages|length > 1 %}ok{% elif true %}no{% else %}never{% endif %}
{{ [1, [2, 3]]|string }} {{ 'a' 'b' }}{{ 10 | string | length }} {{ "abc"|reverse }} {{ "abc"|first }} {{ "a,b"|replace(",", "") }}
{%- set tool_names = [] %}{%- for t in tools %}{%- set tool_names = tool_names + [t.function.name] %}{%- endfor %}{{ tool_names }}
{% set ns = namespace(l=[]) %}{% for t in tools %}{% set ns.l = ns.l + [t.function.name] %}{% endfor %}{{ ns.l|join(", ") }} {{ ns.missing }}|
{{ tools|map(attribute="function.name")|list }} {{ messages|map(attribute="content", default="D")|list }} {{ words|groupby("0")|list|length if false }}x
{{ "<think>a</think>b".split("</think>")[-1].lstrip("\n") }} {{ "<think>a</think>b".split("</think>")[0].split("<think>")[-1] }} {{ ("a" "b")|upper if false else "u" }}
{% set a = 1, 2 %}{{ a }} {% set b = [1], [2] %}{{ b }} {% set c = (1,) %}{{ c }} {% set d, e = (1, [2]) %}{{ d }}{{ e }} {{ () }} {{ ((1,),) }} {{ [(1, 2), [3]] }}
{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}{{ range(3) }} {{ range(4, 0, -1)[1:] }} {{ range(9)|list|sum }} {{ range(5)|last }}
{% for m in messages|selectattr("role", "ne", "system") %}{{ loop.index }}/{{ loop.length }}:{{ m.role }}{{ loop.last }} {% endfor %}
{% set g = list|map("string") %}{{ g|list }}{{ g|list }}{{ g is iterable }}{{ g is sequence }}{% if [] | select %}generators are true{% endif %}
{% for k, v in d.items() %}{{ loop.index }}{{ k }}{{ v }}{% if not loop.last %},{% endif %}{% endfor %} {{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ d.items()|length }} {{ d.keys()|sort|first }}
{% for k, v in (d.items()|list)[::-1] %}{{ k }}{% endfor %} {% for m in messages[::-1] %}{{ m.role }} {% endfor %}{{ messages[5:][::-1] }} {{ messages[:0:-1]|length }} {{ [][::-1] }} {{ [0, 1, 2, 3, 4, 5][4:0:-1] }}
{% set ns = namespace(found=false, last=-1) %}{% for m in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}{% if not ns.found and m.role == "user" %}{% set ns.found = true %}{% set ns.last = index %}{% endif %}{% endfor %}{{ ns.last }}
{{ -n }} {{ -list[0] }} {{ -d.z }} {{ (-n)|abs }} {{ -n|abs }} {{ -t }} {{ 3 - -2 }} {{ -s|length }} {{ -nested.x.y|length }} {{ -floats[1] * 2 }}
{{ {1: "a", true: "b", 1.0: "c"} }} {{ {1: 2}[1.0] }} {{ {1: 2}[true] }} {{ {"a": 1, "a": 2} }} {{ dict([("a", 1)], b=2) }} {{ {(1, 2): 3}[(1, 2)] }} {{ 1 in {true: 1} }}
{{ html|safe + "<" }} {{ "<" + (html|safe) }} {{ (html|e) + html }} {{ [html|safe, html|e] }} {{ "%s %s"|safe % ("<", html|safe) }} {{ ("<"|safe).join(["<", ">"]) }} {{ html|safe is escaped }} {{ [1]|safe }} {{ none|safe }}
{% for g in tools|groupby("type") %}{{ g.grouper }} {{ g.list|length }} {{ g[0] }}{% endfor %} {% for name, members in list|map("string")|map("length")|groupby("x", default=5) %}{{ name }}{{ members }}{% endfor %}
{% set c = cycler("a", "b") %}{{ c.next() }}{{ c.next() }}{{ c.next() }} {% set j = joiner("-") %}{{ j() }}x{{ j() }}y
{{ "{:>5}|{:<5}|{:^5}|{:05d}|{:+.2f}|{:,}|{:x}|{!r}".format("a", "b", "c", 42, 3.14159, 1234567, 255, "q") }} {{ "{a[k]} {0[1]}".format([1, 2], a={"k": "v"}) }} {{ "%-5s|%05d|%+.1e|%g|%r|%x" % ("a", 42, 12345.678, 0.0001, "q", 255) }}
""".strip("\n").split("\n")


def snippets():
    """One template a line, but for the lines of white-space tests, which belong together."""
    out, held = [], []
    for line in SNIPPETS:
        if held or line.startswith("  {% if true %}"):
            held.append(line)
            if line == "end":
                out.append("\n".join(held))
                held = []
        elif out and out[-1].endswith('{{ "multi'):
            out[-1] += "\n" + line
        else:
            out.append(line)
    return out
