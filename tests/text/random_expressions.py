"""Random Jinja2 expressions over a few variables, for comparing two engines. The same seed gives the same expressions."""

import random

VARIABLES = {
    "n": 7, "neg": -3, "zero": 0, "f": 2.5, "t": True, "no": False, "nil": None, "s": "a,b,,c", "uni": "Ünï 😀", "empty": "",
    "html": "<a href=\"x\">&'</a>", "text": "  Hello World-wide (x)\n\tfoo ", "list": [3, 1, 2, 3], "words": ["b", "A", "c"], "none_list": [],
    "mixed": [1, "a", None, True, 2.5, [1]], "d": {"z": 1, "a": [1, 2], "items": 3}, "nested": {"x": {"y": [{"z": "deep"}]}},
    "rows": [{"k": "b", "v": 2, "u": {"w": 1}}, {"k": "A", "v": 1, "u": {"w": 3}}, {"k": "b", "v": 1, "u": {"w": 2}}],
    "floats": [1.0, 0.1, 1e16, 1e-5, -0.0, 100.0], "pairs": [["a", 1], ["b", 2]], "numbers": ["12", " 7 ", "1.5", "x", "0x1f", "1_000"]}

INDEX = ["0", "1", "2", "-1", "-2", "3", "7", "-9", "none", "true", "zero", "neg"]
STRINGS = ["s", "uni", "empty", "html", "text", "'abc'", "'it\\'s'", "('a' ~ n)", "html|safe", "(html|e)", "'%s'", "'x'"]
LISTS = ["list", "words", "none_list", "mixed", "rows", "floats", "pairs", "numbers", "[n, [1, 'x'], (2,)]", "[]", "[true, 1, 1.0, 'a']", "list|sort",
         "range(4)|list", "d.keys()|list", "s.split(',')", "rows|map(attribute='v')|list"]
TUPLES = ["(1, 2)", "('a',)", "()", "(n, 's', none)", "((1, 2), [3])"]
DICTS = ["d", "nested", "{}", "{'a': 1, 'b': (1, 2)}", "{1: 'x', true: 'y', 2.0: 'z'}", "dict(a=1, b='x')", "{'k': html|safe}", "rows[0]"]
NUMBERS = ["n", "neg", "zero", "f", "t", "0", "1", "-2", "10", "0.1", "1e3", "2.0", "-0.0", "d.z", "list[1]", "s|length"]
OTHERS = ["nil", "missing", "no", "d.q", "range(5)", "range(6, 0, -2)"]
VIEWS = ["d.items()", "d.keys()", "d.values()"]  # sets to some operators, which no template uses
SORTS = {"string": STRINGS, "list": LISTS, "tuple": TUPLES, "dict": DICTS, "number": NUMBERS, "other": OTHERS}

FILTERS = """abs attr('items') attr('z') batch(2)|list batch(3,'x')|list batch(2,none)|list capitalize center(9) count d('D') default('D',true) dictsort
dictsort(true) dictsort(by='value') dictsort(reverse=true) e escape filesizeformat filesizeformat(true) first float float(default='F') forceescape
groupby('k')|list groupby('v')|map(attribute='list')|map('length')|list groupby('u.w')|map(attribute='grouper')|list int int(5) int(base=16) items|list indent indent(2,true) indent('>') join join(', ')
join('-',attribute='k') last length list lower map('upper')|list map(attribute='k')|list map(attribute='u.w')|list map(attribute='q',default='D')|list
map('string')|join('|') map('int')|sum map('default','x')|list max max(attribute='v') min min(case_sensitive=true) reject('none')|list reject|list rejectattr('v')|list
rejectattr('v','eq',1)|list replace('a','<') replace('','-') replace('a','b',1) reverse|list round round(1) round(1,'floor') round(0,'ceil') round(-1) safe select|list select('string')|list
select('number')|list select('in',[1,'a'])|list selectattr('k')|list selectattr('k','equalto','b')|list selectattr('v','gt',1)|map(attribute='k')|list slice(2)|list slice(3,'f')|list
sort sort(reverse=true) sort(case_sensitive=true) sort(attribute='k') sort(attribute='v,k') sort(attribute='v',reverse=true) string striptags sum sum(start=10) sum(attribute='v')
sum('v',5) sum(start=[]) sum(start=()) sum(start='') title tojson tojson(indent=1) tojson(sort_keys=true) trim trim('a') truncate(5) truncate(8,true) truncate(6,false,'!') truncate(5,leeway=0) unique|list
unique(true)|list unique(attribute='k')|list upper urlencode wordcount xmlattr format(1,'x') string|length list|length""".split()
METHODS = """upper() lower() title() capitalize() swapcase() strip() lstrip() rstrip() strip('a,') split() split(',') split(',',1) rsplit(',',1) split(none,1) splitlines()
splitlines(true) replace('a','b') replace('a','<',1) find('b') rfind(',') find('a',1) index('a') count(',') count('') startswith('a') startswith(('x','a')) endswith('c') isdigit() isalpha() isupper() islower()
isspace() isalnum() title() zfill(9) ljust(9,'*') rjust(9) center(8,'.') join(words) join(['a','<']) partition(',') rpartition(',') removeprefix('a') removesuffix('c') format(1,2) casefold()
get('z') get('q') get('q',5) get(1) get([1]) items()|list keys()|list values()|list items() keys() values() count(1) index(3) copy() append(1) isnumeric() isdecimal() istitle() isidentifier() expandtabs() isascii()""".split()
TESTS = """boolean callable defined undefined divisibleby(2) escaped even odd false true float integer number string mapping sequence iterable none
in([1,'a','abc']) in('abcabc') in(d) lower upper sameas(none) sameas(true) eq(1) ne(1) gt(1) ge(2) lt(2) le(1) equalto('abc') ==(7) filter test""".split()
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FORMATS = ["'%s'", "'%d'", "'%5.2f|'", "'%-6s|'", "'%05d'", "'%+d'", "'%x'", "'%#o'", "'%r'", "'%a'", "'%e'", "'%g'", "'%c'", "'%i%%'", "'%(z)s'", "'%s-%s'", "'%.2s'", "'% d'", "'%G'", "'%s' ~ '%s'", "'%q'", "'%'", "'%*d'"]
BRACES = ["'{}'", "'{:>6}|'", "'{0}{0}'", "'{:.2f}'", "'{!r}'", "'{x}'", "'{{}}{}'", "'{:05d}'", "'{:<4}|'", "'{:^7}|'", "'{:+}'", "'{:x}'", "'{:,}'", "'{:%}'", "'{'", "'{:*^9}'"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def atom(self, sort=None):
        return self.random.choice(SORTS[sort or self.random.choice(list(SORTS))])

    def operand(self):
        """An atom that binds as tightly as a name."""
        atom = self.atom()
        return f"({atom})" if "|" in atom or atom.startswith("-") else atom

    def slice(self):
        of = self.random.choice(["string", "list", "tuple", "list", "string", "other"])
        part = lambda: self.random.choice(["", "", *INDEX])
        bounds = f"{part()}:{part()}" + (f":{part()}" if self.random.random() < 0.7 else "")
        chosen = f"({self.atom(of)})[{bounds}]"
        return chosen + self.random.choice(["", "", "|list", "|length", "[0]", "[::-1]", "|join('/')", "|first"])

    def item(self):
        return f"({self.atom()})[{self.random.choice([*INDEX, repr('z'), repr('items'), repr('k'), '1.0', '(1, 2)', '[1]', '2.5', 'missing'])}]"

    def filter(self):
        text = f"({self.random.choice([self.atom(), self.atom(), self.atom(), self.random.choice(VIEWS)])})|{self.random.choice(FILTERS)}"
        return text if self.random.random() < 0.8 else f"({text})|{self.random.choice(FILTERS)}"

    def method(self):
        return f"({self.atom(self.random.choice(['string', 'string', 'dict', 'list', 'tuple']))}).{self.random.choice(METHODS)}"

    def test(self):
        return f"({self.atom()}) is {self.random.choice(['', 'not '])}{self.random.choice(TESTS)}"

    def operation(self):
        sort = self.random.choice(list(SORTS))  # mixed sorts are mostly errors
        left = self.atom(sort)
        right = self.atom(sort if self.random.random() < 0.6 else None)
        return f"({left}) {self.random.choice(OPERATORS)} ({right})"

    def chain(self):
        ops = self.random.choices(["<", "<=", "==", "!=", ">", "in", "not in"], k=2)
        return f"{self.operand()} {ops[0]} {self.operand()} {ops[1]} {self.operand()}"

    def sign(self):
        return f"-{self.operand()}{self.random.choice(['', '|abs', '[0]', '.z', '|string', ' + 1', ' * 2', '|length'])}"

    def format(self):
        if self.random.random() < 0.5:
            return f"{self.random.choice(FORMATS)} % ({self.atom()})"
        return f"{self.random.choice(BRACES)}.format({self.atom()})"

    def literal(self):
        items = ", ".join(self.atom() for _ in range(self.random.randrange(4)))
        return self.random.choice([f"[{items}]", f"({items},)" if items else "()", f"{{{self.atom()}: {self.atom()}, 'k': {self.atom()}}}"])

    def condition(self):
        return f"{self.operand()} if {self.operand()} else {self.operand()}"

    def expression(self):
        kinds = [self.slice] * 4 + [self.filter] * 5 + [self.method] * 3 + [self.test] * 2 + [self.operation] * 3
        kinds += [self.item, self.chain, self.sign, self.format, self.format, self.literal, self.condition]
        return self.random.choice(kinds)()


def expressions(count, seed):
    """`count` different ones."""
    maker, found = Maker(seed), {}
    while len(found) < count:
        found[maker.expression()] = None
    return list(found)
