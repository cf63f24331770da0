"""The journey of any token on any layout against a closed form computed here from the layout, and the hops of all tokens against the
run's ledger."""
import collections
import itertools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree

import pytest

import layout_math
import mpi_job
from program import GOLDEN, ROOT

TOY = ROOT / "models" / "toy"
FLOAT, CHUNK = 4, 16
RSVG = shutil.which("rsvg-convert")


class Layout:
    """mesh: [(axis, size)], the fastest first; equal nodes. Experts are dealt in order, one rank each (etp 1)."""

    def __init__(self, mesh, nodes, sp, ep, relayed=None, form="p2p"):
        self.mesh = [(part.rstrip("0123456789"), int(part.lstrip("abcdefghijklmnopqrstuvwxyz"))) for part in mesh.split(",")]
        self.size = {"tp": 1, "cp": 1, "dp": 1, "pp": 1} | dict(self.mesh)
        self.world = self.size["tp"] * self.size["cp"] * self.size["dp"] * self.size["pp"]
        self.node = [rank * nodes // self.world for rank in range(self.world)]
        self.sp, self.ep, self.form = sp and self.size["tp"] > 1, ep, form
        self.stages = [[rank for rank in range(self.world) if self.at(rank)["pp"] == stage] for stage in range(self.size["pp"])]
        if relayed is None:
            relayed = any(self.node[group[0]] != self.node[group[-1]] for s in range(self.size["pp"]) for group in self.groups(s))
        self.relayed = relayed

    def at(self, rank):
        out = {"tp": 0, "cp": 0, "dp": 0, "pp": 0}
        for axis, size in self.mesh:
            out[axis], rank = rank % size, rank // size
        return out

    def rank(self, **wanted):
        return next(rank for rank in range(self.world) if self.at(rank) == wanted)

    def groups(self, stage):
        """Ranks that exchange rows with each other."""
        return [self.stages[stage][i:i + self.ep] for i in range(0, len(self.stages[stage]), self.ep)]


class Prediction:
    """(layer, phase) → {(from, to): bytes} of one token, in order."""

    def __init__(self, layout, config, prompt, position, replica, experts):
        self.layout, self.c = layout, config
        self.tp, self.cp = layout.size["tp"], layout.size["cp"]
        self.hidden, self.travel = config["hidden_size"], 2
        self.replica, self.experts, self.position, self.prompt = replica, experts, position, prompt
        self.owner, self.rows = self.context(prompt, position)
        self.row = self.rows.index(position)
        self.home_tp = next(t for t, (a, b) in enumerate(layout_math.shares(len(self.rows), self.tp)) if a <= self.row < b)
        self.leaves = config["num_attention_heads"]
        self.parts = [len(layout_math.nodes_of(a, b, self.leaves)) for a, b in layout_math.shares(self.leaves, self.tp)]
        self.hops = collections.OrderedDict()
        self.homes, self.kv = [], []
        layers = layout_math.shares(config["num_hidden_layers"], layout.size["pp"])
        for stage, (first, end) in enumerate(layers):
            self.homes.append([self.member(t, stage) for t in ([self.home_tp] if layout.sp else range(self.tp))])
            for layer in range(first + 1, end + 1):
                self.attention(layer, stage)
                self.to_experts(layer, stage)
            if stage + 1 < len(layers):
                self.hops[end, "stage_send"] = {
                    (rank, self.member(layout.at(rank)["tp"], stage + 1)): FLOAT * self.hidden for rank in self.homes[stage]}
        if position == prompt - 1:
            self.to_logits(len(layers) - 1)

    def context(self, prompt, position):
        """(cp coordinate, the rows there): 2·cp runs of whole chunks, member r has runs r and 2·cp - 1 - r."""
        if self.cp == 1:
            return 0, list(range(prompt))
        assert prompt % (2 * self.cp * CHUNK) == 0
        run = prompt // (2 * self.cp)
        owner = min(position // run, 2 * self.cp - 1 - position // run)
        return owner, [p for p in range(prompt) if p // run in (owner, 2 * self.cp - 1 - owner)]

    def member(self, tp, stage, cp=None):
        return self.layout.rank(tp=tp, cp=self.owner if cp is None else cp, dp=self.replica, pp=stage)

    def cut(self, a, b):
        """Bytes of the token's row of a sum that rank a sends to b without sp: b's slice of the row for every part, then a's slice of
        the sum."""
        row = (self.row * self.hidden, (self.row + 1) * self.hidden)
        slices = layout_math.shares(len(self.rows) * self.hidden, self.tp)
        inside = [max(0, min(end, row[1]) - max(begin, row[0])) for begin, end in slices]
        return FLOAT * (self.parts[a] * inside[b] + inside[a])

    def attention(self, layer, stage):
        c, others = self.c, [t for t in range(self.tp) if t != self.home_tp]
        home = self.member(self.home_tp, stage)
        if self.layout.sp:
            self.hops[layer, "attention_gather"] = {(home, self.member(t, stage)): FLOAT * self.hidden for t in others}
        heads = layout_math.shares(c["num_attention_heads"], self.tp)
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        for t, (first, end) in enumerate(heads):
            kv_heads = (end - 1) // group - first // group + 1
            row = kv_heads * 2 * c["head_dim"] * 2  # keys and values, bf16
            self.kv.append((layer, self.member(t, stage), row))
            ring = [self.member(t, stage, (self.owner + step) % self.cp) for step in range(self.cp)]
            pairs = zip(ring, ring[1:]) if self.layout.form == "p2p" else ((ring[0], to) for to in ring[1:])
            if self.cp > 1:
                self.hops.setdefault((layer, "kv_exchange"), {}).update({pair: row for pair in pairs})
        if self.tp == 1:
            return
        if self.layout.sp:
            sums = {(self.member(t, stage), home): FLOAT * self.hidden * self.parts[t] for t in others}
        else:
            sums = {(self.member(a, stage), self.member(b, stage)): self.cut(a, b) for a, b in itertools.permutations(range(self.tp), 2)}
        self.hops[layer, "attention_sum"] = {pair: size for pair, size in sums.items() if size}

    def to_experts(self, layer, stage):
        layout, home = self.layout, self.member(self.home_tp, stage)
        group = next(group for group in layout.groups(stage) if home in group)
        dealt = layout_math.shares(self.c["num_experts"], layout.ep)
        place = {e: group[ep] for ep, (a, b) in enumerate(dealt) for e in range(a, b)}
        out, back = collections.Counter(), collections.Counter()
        copies = set()
        for expert in self.experts[str(layer)]:
            there = place[expert]
            if layout.relayed and layout.node[there] != layout.node[home]:
                index = home - layout.node.index(layout.node[home])
                relay = layout.node.index(layout.node[there]) + index
                copies |= {(home, relay), (relay, there)}
                way = [(there, relay), (relay, home)]
            else:
                copies.add((home, there))
                way = [(there, home)]
            for a, b in way:
                if a != b:
                    back[a, b] += self.hidden * self.travel
        for a, b in copies:
            if a != b:
                out[a, b] = self.hidden * self.travel
        if len(group) > 1:
            self.hops[layer, "dispatch"], self.hops[layer, "combine"] = dict(out), dict(back)
        if self.tp > 1 and not layout.sp:
            self.hops[layer, "combine_gather"] = {
                (home, self.member(t, stage)): FLOAT * self.hidden for t in range(self.tp) if t != self.home_tp}

    def to_logits(self, stage):
        layers, vocab = self.c["num_hidden_layers"], layout_math.shares(self.c["vocab_size"], self.tp)
        home = self.member(self.home_tp, stage)
        if self.layout.sp:
            self.hops[layers, "head_gather"] = {(home, self.member(t, stage)): FLOAT * self.hidden for t in range(self.tp) if t != self.home_tp}
        sends = {(self.member(t, stage), 0): FLOAT * (b - a) for t, (a, b) in enumerate(vocab) if self.member(t, stage) != 0}
        if sends:
            self.hops[layers, "logits"] = sends

    def totals(self):
        pairs = {pair for hops in self.hops.values() for pair in hops}
        ranks = sorted({rank for pair in pairs for rank in pair} | set(self.homes[0]))
        node = self.layout.node
        crossings = sum(node[a] != node[b] for hops in self.hops.values() for a, b in hops)
        return ranks, crossings, len(self.hops)


def tokens_of(count):
    return ",".join(str(i * 31 % 1500 + 3) for i in range(count))


# flags, prompt, replica, positions
CASES = [
    ("tp1", 1, False, 1, 9, 0, [0, 8]),
    ("tp2", 1, True, 2, 9, 0, [0, 4, 5, 8]),
    ("tp2", 1, False, 2, 9, 0, [0, 4, 5, 8]),
    ("tp8", 4, False, 8, 11, 0, [0, 1, 5, 10]),
    ("tp3", 1, True, 3, 10, 0, [0, 3, 9]),
    ("dp4", 2, False, 4, 9, 3, [0, 8]),
    ("pp4", 2, False, 1, 9, 0, [0, 8]),
    ("pp3,tp2", 2, True, 2, 7, 0, [2, 3, 6]),
    ("tp2,dp2,pp2", 2, True, 4, 13, 1, [0, 6, 7, 12]),
    ("tp2,dp2,pp2", 4, False, 4, 13, 1, [0, 6, 7, 12]),
    ("pp2,dp2,tp2", 2, True, 4, 13, 1, [0, 6, 12]),
    ("tp2,dp4,pp2", 4, True, 8, 20, 2, [3, 12, 19]),
    ("dp16", 4, False, 16, 5, 9, [0, 4]),
    ("dp7", 7, False, 7, 5, 6, [1, 4]),
    ("tp2,cp2", 2, True, 4, 128, 0, [0, 40, 70, 127]),
    ("tp2,cp2,dp2,pp2", 4, True, 8, 128, 1, [1, 33, 95, 127]),
    ("cp4,dp2", 2, False, 8, 128, 1, [5, 16, 60, 111]),
    ("cp2,pp2,tp2", 2, False, 4, 64, 0, [5, 20, 40, 63]),
]


# Where there is one node both backends send alike, and without cp all forms do.
CLOSED = [(*case, backend, form) for case in CASES for backend in ("flat", "hierarchical") for form in ("p2p", "all_gather")
          if ("cp" in case[0] or form == "p2p") and (case[1] > 1 or backend == "hierarchical")]


@pytest.mark.parametrize("mesh, nodes, sp, ep, prompt, replica, positions, backend, form", CLOSED)
def test_closed_form(sixfold, config, mesh, nodes, sp, ep, prompt, replica, positions, backend, form):
    layout = Layout(mesh, nodes, sp, ep, relayed=backend == "hierarchical" and nodes > 1, form=form)
    for position in positions:
        said = sixfold("trace", TOY, "--prompt-tokens", tokens_of(prompt), "--token", position, "--replica", replica, "--mesh", mesh, "--nodes", nodes,
                       *["--sequence-parallel"] * sp, "--ep", ep, "--all2all-backend", backend, "--cp-comm-type", form, "--attention-chunk", CHUNK, "--json").json()
        want = Prediction(layout, config(TOY), prompt, position, replica, said["experts"])
        got = collections.OrderedDict(((row["layer"], row["phase"]), {}) for row in said["itinerary"])
        for hop in said["hops"]:
            got[hop["layer"], hop["phase"]][hop["from"], hop["to"]] = hop["bytes"]
            assert hop["crosses"] == (layout.node[hop["from"]] != layout.node[hop["to"]])
            assert {hop["from"], hop["to"]} <= set(hop["group"])
        # Layers in which every expert is on one rank and shared by the group that sums are no dispatch.
        assert got == want.hops, (mesh, position)
        assert (said["ranks"], said["crossings"], said["operations"]) == want.totals()
        assert [home["ranks"] for home in said["home"]] == want.homes
        kv = sorted((layer, kv["rank"], kv["bytes"] // (kv["layers"][1] - kv["layers"][0] + 1))
                    for kv in said["kv"] for layer in range(kv["layers"][0], kv["layers"][1] + 1))
        assert kv == sorted(want.kv)


# Every way of cutting a sum, of sharing experts, of meeting keys; models with other attention and other experts.
SUMS = [
    (TOY, "--mesh tp2"), (TOY, "--mesh tp8"), (TOY, "--mesh tp3 --sequence-parallel"), (TOY, "--mesh tp2,dp2 --ep 2 --etp 2"),
    (TOY, "--mesh tp2,dp2,pp2 --ep 4 --nodes 2 --replica 1"), (TOY, "--mesh tp2,dp2,pp2 --ep 4 --nodes 2 --numerics fast"),
    (TOY, "--mesh tp2,cp2 --sequence-parallel"), (TOY, "--mesh cp3"), (TOY, "--mesh cp4 --cp-comm-type all_gather"),
    (TOY, "--mesh cp2 --cp-comm-type a2a"), (TOY, "--mesh cp4 --cp-comm-type a2a+p2p --nodes 2"), (TOY, "--mesh cp3 --cp-comm-type striped"),
    (TOY, "--mesh cp2 --numerics fast --cp-kv-cache-interleave-size 1"), (TOY, "--mesh tp2,cp2,dp2,pp2 --ep 8 --nodes 4"),
    (GOLDEN / "olmoe", "--mesh tp2"), (GOLDEN / "deepseek_v3", "--mesh tp2 --sequence-parallel"),
    (GOLDEN / "deepseek_v3", "--mesh dp2,cp2 --ep 2"), (GOLDEN / "gpt_oss", "--mesh cp2,dp2 --ep 4 --nodes 2"),
    (GOLDEN / "llama_gqa", "--mesh tp2,pp2,cp2 --nodes 2"),
]


@pytest.mark.parametrize("model, flags", SUMS)
def test_hops_of_all_tokens_are_the_ledger(sixfold, model, flags):
    """Of every token the bytes of its hops; of some the hops."""
    prompt = 35
    tokens = ",".join(str(i * 5 % 60 + 1) for i in range(prompt))
    for which in (["--token", 0], ["--token", 18], ["--last"]):
        said = sixfold("trace", model, "--prompt-tokens", tokens, *which, *flags.split(), "--attention-chunk", CHUNK, "--decode", "--json").json()
        by_position, ledger = said["ledger"]["by_position"], said["ledger"]
        assert len(by_position) == prompt + 1
        assert sum(by_position) == ledger["bytes"] == sum(row["bytes"] for row in ledger["rows"]) > 0
        assert sum(hop["bytes"] for hop in said["hops"]) == said["bytes"] == by_position[said["token"]]
        assert sum(hop["bytes"] for hop in said["decode"]["hops"]) == by_position[prompt]
        assert "routes" not in {row["op"] for row in ledger["rows"]}


def test_hops_of_each_token_by_axis_op_and_link(sixfold):
    total = collections.Counter()
    for position in range(9):
        said = sixfold("trace", TOY, "--prompt-tokens", tokens_of(9), "--token", position, "--mesh", "tp2,dp2,pp2", "--ep", 4, "--nodes", 2, "--json").json()
        for hop in said["hops"]:
            total[hop["axis"], hop["op"], hop["link"]] += hop["bytes"]
    assert dict(total) == {(row["axis"], row["op"], row["link"]): row["bytes"] for row in said["ledger"]["rows"] if row["bytes"]}


class TestAfterlife:
    """The first new token: its row has a way of its own, and its queries go to where the keys rest."""

    @pytest.mark.parametrize("position", [3, 40, 70, 100])
    def test_queries_meet_keys(self, sixfold, position):
        said = sixfold("trace", TOY, "--prompt-tokens", tokens_of(128), "--token", position, "--mesh", "tp2,cp2", "--attention-chunk", CHUNK,
                       "--decode", "--json").json()
        decode = said["decode"]
        assert decode["token"] == 128
        home_cp = decode["kv"][0]["rank"] // 2
        for read in decode["reads"]:
            there = read["rank"] // 2
            assert read["from"] == ([] if there == home_cp else [read["rank"] % 2 + 2 * home_cp]), read
        assert {read["rank"] for read in decode["reads"]} == {kv["rank"] for kv in said["kv"]}
        assert len(decode["reads"]) == 8 * 2
        phases = [row["phase"] for row in decode["itinerary"] if row["layer"] == 1]
        assert phases[:2] == ["query_exchange", "partial_return"]

    def test_new_keys_go_round(self, sixfold):
        """The next new token after a prompt that ends a chunk rests where the round robin says, in every layer."""
        said = sixfold("trace", TOY, "--prompt-tokens", tokens_of(128), "--token", 0, "--mesh", "cp4", "--attention-chunk", CHUNK, "--decode", "--json").json()
        assert len({kv["rank"] for kv in said["decode"]["kv"]}) == 1

    def test_the_last_token_comes_beside_another(self, sixfold):
        flags = ["--prompt-tokens", tokens_of(9), "--mesh", "tp2,cp2", "--json"]
        both = sixfold("trace", TOY, "--token", 2, "--last", *flags).json()
        alone = sixfold("trace", TOY, "--last", *flags).json()
        assert both["token"] == 2 and both["last"]["token"] == alone["token"] == 8 and "last" not in alone
        assert both["last"]["operations"] == alone["operations"] and both["last"]["kv"] == alone["kv"]
        assert both["operations"] == sixfold("trace", TOY, "--token", 2, *flags).json()["operations"]

    def test_the_last_token_reaches_rank_0(self, sixfold):
        said = sixfold("trace", TOY, "--prompt-tokens", tokens_of(9), "--last", "--mesh", "tp2,dp2,pp2", "--ep", 4, "--sequence-parallel",
                       "--replica", 1, "--json").json()
        assert [row["phase"] for row in said["itinerary"][-2:]] == ["head_gather", "logits"]
        assert {hop["to"] for hop in said["hops"] if hop["phase"] == "logits"} == {0} and 0 in said["ranks"]
        earlier = sixfold("trace", TOY, "--prompt-tokens", tokens_of(9), "--token", 7, "--mesh", "tp2,dp2,pp2", "--ep", 4, "--sequence-parallel",
                          "--replica", 1, "--json").json()
        assert {"head_gather", "logits"} & {row["phase"] for row in earlier["itinerary"]} == set()


class TestExperts:
    def test_forced_experts_are_taken_and_others_are_the_gates(self, sixfold, tmp_path):
        (tmp_path / "experts").write_text(json.dumps({"2": [31, 4]}))
        common = ["trace", TOY, "--prompt-tokens", tokens_of(9), "--token", 4, "--mesh", "dp4", "--ep", 4, "--json"]
        free, forced = sixfold(*common).json()["experts"], sixfold(*common, "--experts", tmp_path / "experts").json()["experts"]
        assert forced["2"] == [31, 4] != free["2"] and forced["1"] == free["1"] and set(forced) == set(free)

    @pytest.mark.parametrize("text, code, reason", [
        ('{"9": [1, 2]}', 2, "'9' is no layer with experts"), ('{"0": [1, 2]}', 2, "'0' is no layer"), ('{"x": [1, 2]}', 2, "'x' is no layer"),
        ('{"1": [1]}', 2, "a list of 2 experts"), ('{"1": 3}', 2, "a list of 2 experts"), ('{"1": [1, 32]}', 2, "from 0 to 31"),
        ('{"1": [1, -1]}', 2, "from 0 to 31"), ('{"1": [1, "2"]}', 2, "from 0 to 31"), ('{"1": [7, 7]}', 2, "expert 7 comes twice"),
        ("[1, 2]", 2, "one JSON object"), ("{", 2, "one JSON object")])
    def test_bad_files(self, sixfold, tmp_path, text, code, reason):
        (tmp_path / "experts").write_text(text)
        answer = sixfold("trace", TOY, "--prompt-tokens", "1,2,3", "--token", 1, "--experts", tmp_path / "experts")
        assert answer.code == code and reason in answer.err

    def test_no_file_and_no_experts(self, sixfold, tmp_path):
        answer = sixfold("trace", TOY, "--prompt-tokens", "1,2,3", "--token", 1, "--experts", tmp_path / "none")
        assert answer.code == 3 and "none" in answer.err
        answer = sixfold("trace", GOLDEN / "llama_gqa", "--prompt-tokens", "1,2,3", "--token", 1, "--experts", tmp_path / "none")
        assert answer.code == 2 and "no experts" in answer.err


@pytest.mark.parametrize("flags, reason", [
    ("--prompt-tokens 1,2,3 --token 3", "positions 0 to 2"), ("--prompt-tokens 1,2,3", "--token N"),
    ("--prompt-tokens 1,2,3", "--token N"), ("--token 1", "a prompt is needed"), ("--prompt a --prompt-tokens 1 --token 0", "in one form"),
    ("--prompt-tokens 1,2,3 --token 1 --replica 2 --mesh dp2", "2 replicas, from 0 to 1"), ("--prompt-tokens 1,5000 --token 1", "outside the vocabulary"),
    ("--prompt-tokens 1,2 --token 1 --json --svg", "exclude each other"), ("--prompt-tokens 1,2 --token 1 --compare tp2 --svg", "--compare answers"),
    ("--prompt-tokens 1,2 --token 1 --compare tp2,tp2", "--compare"), ("--prompt-tokens 1,2 --token 1 --compare tp64", "--compare"),
    ("--prompt-tokens 1,2 --token 1 --mesh dp2 --replica 1 --compare tp2", "has 1 replica"), ("--prompt-tokens 1,2 --token auto", "--token N")])
def test_refusals(sixfold, flags, reason):
    answer = sixfold("trace", TOY, *flags.split())
    assert answer.code == 2 and reason in answer.err, answer.err


class TestForms:
    COMMON = ["--prompt", "Where did it go, and why?", "--token", 5, "--mesh", "tp2,dp2,pp2", "--ep", 4, "--nodes", 2]

    def test_table(self, sixfold):
        answer = sixfold("trace", TOY, *self.COMMON)
        assert answer.code == 0
        for text in ("dispatch {0-3}", "pipeline send", "K/V stay on rank", "node crossings", "⇒"):
            assert text in answer.out, text

    def test_tables_say_from_where_layers_count(self, sixfold):
        """The journey counts layers from 1, `layout` from 0, as checkpoints do; each says so itself."""
        header = next(line for line in sixfold("trace", TOY, *self.COMMON).out.splitlines() if "operation" in line)
        assert "L from 1" in header
        assert "layers count from 1" in sixfold("trace", TOY, *self.COMMON, "--svg").out
        header = next(line for line in sixfold("layout", TOY, "--mesh", "pp2").out.splitlines() if "vocabulary" in line)
        assert "layers from 0" in header
        for command in ("layout", "trace"):
            assert f"ayers count from {0 if command == 'layout' else 1}" in sixfold(command, "--help").out.replace("\n", " ")

    def test_table_of_one_rank(self, sixfold):
        said = sixfold("trace", TOY, "--prompt-tokens", "1,2,3", "--token", 1, "--json").json()
        assert (said["ranks"], said["crossings"], said["operations"], said["hops"]) == ([0], 0, 0, [])

    def test_picture(self, sixfold, tmp_path):
        assert sixfold("trace", TOY, *self.COMMON, "--svg", "--output", tmp_path / "journey.svg").out == ""
        said = sixfold("trace", TOY, *self.COMMON, "--json").json()
        root = xml.etree.ElementTree.parse(tmp_path / "journey.svg").getroot()
        arrows = [line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.get("marker-end")]
        assert len(arrows) == len(said["hops"])
        assert "href" not in (tmp_path / "journey.svg").read_text()

    @pytest.mark.skipif(RSVG is None, reason="no rsvg-convert here (librsvg2-bin)")
    @pytest.mark.parametrize("flags", [
        "--token 0", "--token 1 --mesh tp2", "--last --mesh cp2,pp2", "--last --mesh tp2,dp2,pp2 --ep 4 --nodes 8 --sequence-parallel",
        "--last --mesh tp2,cp2,dp16,pp2 --ep 32 --nodes 32 --replica 15 --attention-chunk 16"])
    def test_all_of_a_picture_is_in_its_frame(self, sixfold, tmp_path, flags):
        file = tmp_path / "journey.svg"
        assert sixfold("trace", TOY, "--prompt-tokens", ",".join(map(str, range(1, 65))), *flags.split(), "--svg", "-o", file).code == 0
        text = file.read_text()
        width, height = (int(re.search(rf'{side}="(\d+)"', text).group(1)) for side in ("width", "height"))

        def drawn(x, y, w, h):
            """The pixels of a part of the plane, as PNG; parts without a mark give the same bytes."""
            part = re.sub(r"<svg [^>]*>", f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="{x} {y} {w} {h}" '
                          'font-family="sans-serif" font-size="11">', text, count=1)
            return subprocess.run([RSVG], input=part.encode(), capture_output=True, check=True, timeout=60).stdout

        empty = drawn(-5000, -5000, 300, height + 100)
        assert drawn(-300, -50, 300, height + 100) == empty, "marks left of the frame"
        assert drawn(width, -50, 300, height + 100) == empty, "marks right of the frame"
        below = drawn(-5000, -5000, width, 100)
        assert drawn(0, height, width, 100) == below and drawn(0, -100, width, 100) == below, "marks above or below the frame"
        assert drawn(width - 300, -50, 300, height + 100) != empty

    def test_timeline(self, sixfold):
        events = sixfold("trace", TOY, *self.COMMON, "--perfetto").json()["traceEvents"]
        said = sixfold("trace", TOY, *self.COMMON, "--json").json()
        starts = {event["id"]: event for event in events if event["ph"] == "s"}
        ends = {event["id"]: event for event in events if event["ph"] == "f"}
        assert len(starts) == len(said["hops"]) and set(starts) == set(ends)
        assert [(starts[i]["tid"], ends[i]["tid"]) for i in sorted(starts)] == [(hop["from"], hop["to"]) for hop in said["hops"]]
        slices = [event for event in events if event["ph"] == "X"]
        for event in [*starts.values(), *ends.values()]:
            assert any(s["tid"] == event["tid"] and s["ts"] - 1e-3 <= event["ts"] <= s["ts"] + s["dur"] + 1e-3 for s in slices)


@pytest.mark.skipif(mpi_job.MPIRUN is None, reason="no mpirun.openmpi here (openmpi-bin)")
@pytest.mark.parametrize("compare", [[], ["--compare", "tp2,pp2,cp2"]])
def test_processes_tell_what_threads_tell(sixfold, tmp_path, compare):
    ask = ["trace", TOY, "--prompt-tokens", tokens_of(64), "--token", 20, "--mesh", "tp2,cp2,pp2", "--ep", 4, "--nodes", 2, "--sequence-parallel",
           "--attention-chunk", CHUNK, "--decode", "--json", *compare]
    code, out, err = mpi_job.run(8, [sixfold.binary, *map(str, ask)], tmp_path)
    assert code == 0, err
    assert json.loads(out) == sixfold(*ask).json()


def test_processes_that_the_second_mesh_lacks(sixfold, tmp_path):
    if mpi_job.MPIRUN is None:
        pytest.skip("no mpirun.openmpi here (openmpi-bin)")
    code, _, err = mpi_job.run(2, [sixfold.binary, "trace", TOY, "--prompt-tokens", "1,2", "--token", "0", "--mesh", "tp2", "--compare", "tp4"], tmp_path)
    assert code == 2 and "2 processes were launched" in err
