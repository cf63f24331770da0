"""What `sixfold layout` must say, computed a second time from the design's rules with the plainest code there is: every
message between two ranks is looked at by itself. A model is its config.json, stored as F32, BF16 or F16 (no blocks)."""
import itertools
import math
from collections import Counter
from fractions import Fraction

FLOAT = 4  # bytes: sums, hidden states, queries, attention outputs and logits travel as fp32
PAGE = 16  # positions of K/V that travel together
SEGMENT = 64  # chunks of keys that prefill takes at once


def deal(units, parts):
    """Boundaries of `parts` shares of `units` things; the first shares get what is left over."""
    sizes = [units // parts + (part < units % parts) for part in range(parts)]
    return list(itertools.accumulate(sizes, initial=0))


def shares(units, parts):
    bounds = deal(units, parts)
    return list(zip(bounds, bounds[1:]))


class Model:
    def __init__(self, config):
        self.hidden, self.vocab = config["hidden_size"], config["vocab_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.hidden // self.heads
        experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
        dense = config.get("mlp_only_layers") or []
        stride = config.get("decoder_sparse_step") or 1
        self.sparse = [bool(experts) and layer not in dense and (layer + 1) % stride == 0
                       for layer in range(config["num_hidden_layers"])]
        self.experts, self.top_k = experts, config.get("num_experts_per_tok")
        # Rows travel as the products read them, outputs in the dtype of activations.
        self.travel = 2 if config.get("dtype", config.get("torch_dtype")) == "bfloat16" else 4
        self.width = config["intermediate_size"]
        self.expert_width = config.get("moe_intermediate_size") or self.width
        self.whole_norm = config["model_type"] == "olmoe"
        self.shared_leaves = None
        self.k_dim = self.v_dim = self.head_dim
        self.window = config.get("sliding_window") or 0
        self.position_elements = self.k_dim + self.v_dim  # of K and V, a K/V head
        if "kv_lora_rank" in config:  # latent attention: one K/V head for all, a head's output of its own width
            self.kv_heads, self.head_dim = 1, config["v_head_dim"]
            self.v_dim, self.k_dim = config["kv_lora_rank"], config["kv_lora_rank"] + config["qk_rope_head_dim"]
            self.position_elements = self.k_dim  # the value is a part of the key
            self.sparse = [layer >= config["first_k_dense_replace"] for layer in range(config["num_hidden_layers"])]
            self.shared_leaves = ffn_leaves(config["n_shared_experts"] * self.expert_width)
        # Ends of the leaves in elements: a leaf a head below 16 heads; about 8 of whole 32s in the FFN.
        assert self.heads < 16
        self.head_leaves = [self.head_dim * head for head in range(self.heads + 1)]
        self.width_leaves, self.expert_leaves = ffn_leaves(self.width), ffn_leaves(self.expert_width)


def ffn_leaves(width):
    blocks = -(-width // 32)
    leaves = min(8, blocks)
    return [min(width, blocks * leaf // leaves * 32) for leaf in range(leaves + 1)]


def nodes_of(begin, end, leaves):
    """The largest nodes of the binary tree over `leaves` leaves that lie in [begin, end), from the left. A node is 2**level
    leaves wide, and narrower where the leaves end."""
    def visit(first, size):
        last = min(first + size, leaves)
        if first >= end or last <= begin:
            return []
        if begin <= first and last <= end:
            return [(first, last)]
        return visit(first, size // 2) + visit(first + size // 2, size // 2)

    size = 1
    while size < leaves:
        size *= 2
    return visit(0, size)


class Layout:
    """mesh: [(axis, size)], the fastest first; ranks_per_node: a number a node. relayed: None is the default of --all2all-backend.
    form: of --cp-comm-type; chunk: keys that rest together; ulysses: ranks that share heads out, None the default."""

    def __init__(self, model, mesh, ranks_per_node, sequence_parallel=False, ep=None, etp=None, relayed=None, form="p2p",
                 chunk=256, ulysses=None):
        self.model, self.mesh = model, mesh
        self.size = {"tp": 1, "cp": 1, "dp": 1, "pp": 1} | dict(mesh)
        self.world = math.prod(self.size.values())
        assert sum(ranks_per_node) == self.world
        self.node = [node for node, count in enumerate(ranks_per_node) for _ in range(count)]
        self.sp = sequence_parallel and self.size["tp"] > 1
        self.tp = self.size["tp"]
        # The ranks of a stage in ascending order: etp counts fastest, then ep, then edp.
        self.etp = etp or (1 if ep else self.tp)
        self.ep = ep or 1
        self.stages = [[rank for rank in range(self.world) if self.coordinates(rank)["pp"] == stage]
                       for stage in range(self.size["pp"])]
        assert len(self.stages[0]) % (self.ep * self.etp) == 0
        groups = self.dispatch_groups(0)
        tp_groups = {self.tp_group(cp, dp, 0) for cp in range(self.size["cp"]) for dp in range(self.size["dp"])}
        etp_groups = {tuple(group[i:i + self.etp]) for group in groups for i in range(0, len(group), self.etp)}
        self.travels = any(model.sparse) and not (self.ep == 1 and etp_groups == tp_groups)
        self.relayed = relayed if relayed is not None else any(self.node[g[0]] != self.node[g[-1]]
                                                               for s in range(len(self.stages)) for g in self.dispatch_groups(s))

        self.form, self.chunk = form, chunk
        self.ulysses = {"a2a": self.size["cp"], "a2a+p2p": ulysses or self._largest_ulysses()}.get(form, 1)

    def tp_group(self, cp, dp, pp):
        return tuple(self.rank_at(tp=tp, cp=cp, dp=dp, pp=pp) for tp in range(self.size["tp"]))

    def cp_group(self, tp, dp, pp):
        return [self.rank_at(tp=tp, cp=cp, dp=dp, pp=pp) for cp in range(self.size["cp"])]

    def _largest_ulysses(self):
        """Neighbours that share the heads out are on one node and have whole heads each."""
        cp = self.size["cp"]
        groups = [self.cp_group(tp, dp, pp) for tp in range(self.tp) for dp in range(self.size["dp"]) for pp in range(self.size["pp"])]
        heads = [self.shard(group[0])["heads"] for group in groups]
        fits = [u for u in range(1, cp + 1) if cp % u == 0 and all((end - begin) % u == 0 for begin, end in heads) and
                all(len({self.node[rank] for rank in group[i:i + u]}) == 1 for group in groups for i in range(0, cp, u))]
        return max(fits)

    def dispatch_groups(self, stage):
        ranks, size = self.stages[stage], self.ep * self.etp
        return [ranks[i:i + size] for i in range(0, len(ranks), size)]

    def expert_place(self, rank):
        stage = self.stages[self.coordinates(rank)["pp"]]
        index = stage.index(rank)
        return {"etp": index % self.etp, "ep": index // self.etp % self.ep, "edp": index // (self.etp * self.ep)}

    def coordinates(self, rank):
        out = {"tp": 0, "cp": 0, "dp": 0, "pp": 0}
        for axis, size in self.mesh:
            out[axis] = rank % size
            rank //= size
        return out

    def rank_at(self, **wanted):
        return next(rank for rank in range(self.world) if self.coordinates(rank) == wanted)

    def leaf_share(self, leaves, tp):
        return shares(len(leaves) - 1, self.tp)[tp]

    def elements(self, leaves, tp):
        begin, end = self.leaf_share(leaves, tp)
        return [leaves[begin], leaves[end]]

    def nodes(self, leaves, tp):
        """Of a member: ranges of elements that it sums up by itself and sends as one partial sum each."""
        return [[leaves[a], leaves[b]] for a, b in nodes_of(*self.leaf_share(leaves, tp), len(leaves) - 1)]

    def shard(self, rank):
        m, at = self.model, self.coordinates(rank)
        heads = [element // m.head_dim for element in self.elements(m.head_leaves, at["tp"])]
        read = sorted({head * m.kv_heads // m.heads for head in range(*heads)})
        out = {"rank": rank, "node": self.node[rank], **at,
               "layers": list(shares(len(m.sparse), self.size["pp"])[at["pp"]]),
               "heads": heads,
               "kv_heads": [read[0], read[-1] + 1],
               "output_nodes": self.nodes(m.head_leaves, at["tp"]),
               "vocab": list(shares(m.vocab, self.tp)[at["tp"]]),
               "embedding": at["pp"] == 0,
               "head": at["pp"] == self.size["pp"] - 1}
        if not all(m.sparse):
            out |= {"intermediate": self.elements(m.width_leaves, at["tp"]),
                    "down_nodes": self.nodes(m.width_leaves, at["tp"])}
        if any(m.sparse):
            place = self.expert_place(rank)
            first, last = shares(len(m.expert_leaves) - 1, self.etp)[place["etp"]]
            out |= place | {"expert_intermediate": [m.expert_leaves[first], m.expert_leaves[last]]}
            if any(m.sparse[layer] for layer in range(*out["layers"])):
                out["experts"] = list(range(*shares(m.experts, self.ep)[place["ep"]]))
            if m.shared_leaves:
                out["shared_intermediate"] = self.elements(m.shared_leaves, at["tp"])
        return out

    # Bytes of a step.
    def step(self, rows, wanted="last"):
        """{(axis, op, link): [count, bytes]} of a step. rows: of each replica. wanted: the rows of which rank 0 gets logits, the
        last one of a replica, or all."""
        self.counts, self.bytes = Counter(), Counter()
        stages, longest = self.size["pp"], max(rows)
        batches = 1 if stages == 1 else max(1, min(longest, 2 * stages if longest >= 128 * stages else stages))
        dealt = {}  # rows of a cp rank by (micro-batch, dp)
        for dp, of_replica in enumerate(rows):
            bounds = shares(of_replica, batches)
            owners = self._owners(of_replica, bounds)
            for batch, (begin, end) in enumerate(bounds):
                members = [self._member(owners, position, begin, end) for position in range(begin, end)]
                dealt[batch, dp] = [members.count(cp) for cp in range(self.size["cp"])]
                for cp in range(self.size["cp"]):
                    last = batch == batches - 1 and members[-1:] == [cp]
                    self._micro_batch(cp, dp, dealt[batch, dp][cp], wanted == "all", last)
                if self.size["cp"] > 1 and begin < end:
                    for stage in range(stages):
                        for _ in range(*shares(len(self.model.sparse), stages)[stage]):
                            for tp in range(self.tp):
                                self._attention(self.cp_group(tp, dp, stage), owners, members, begin, end)
        if self.travels:
            for batch in range(batches):
                of_batch = [dealt[batch, dp] for dp in range(self.size["dp"])]
                for stage in range(stages):
                    for layer in range(*shares(len(self.model.sparse), stages)[stage]):
                        if self.model.sparse[layer]:
                            for group in self.dispatch_groups(stage):
                                self._experts(group, of_batch)
        return {key: [self.counts[key], self.bytes[key]] for key in self.counts}

    # Context parallelism.
    def _owners(self, rows, bounds):
        """Which cp rank keeps each chunk of a prompt: the chunks that begin in a micro-batch are cut into 2C runs, of which rank r
        gets r and 2C-1-r. What is left over goes one by one to the rank that has fewest, to its early run first."""
        cp, owners, held = self.size["cp"], [], Counter()
        for begin, end in bounds:
            count = len([c for c in range(-(-rows // self.chunk)) if begin <= c * self.chunk < end])
            runs = [count // (2 * cp)] * (2 * cp)
            for rank in range(cp):
                held[rank] += 2 * runs[0]
            grown = Counter()
            for _ in range(count % (2 * cp)):
                rank = min((rank for rank in range(cp) if grown[rank] < 2), key=lambda rank: (held[rank], rank))
                runs[rank if not grown[rank] else 2 * cp - 1 - rank] += 1
                grown[rank] += 1
                held[rank] += 1
            for run, size in enumerate(runs):
                owners += [min(run, 2 * cp - 1 - run)] * size
        return owners

    def _member(self, owners, position, begin, end):
        """The cp rank that computes the row at a position."""
        one_by_one = self.form == "striped" and end - begin > 1
        return position % self.size["cp"] if one_by_one else owners[position // self.chunk]

    def _page_bytes(self, kv_heads):
        return kv_heads * PAGE * self.model.position_elements * self.model.travel

    def _attention(self, group, owners, members, begin, end):
        """One layer of rows [begin, end) of a prompt among the ranks that share its context."""
        m, cp, heads = self.model, len(group), self.shard(group[0])["heads"]
        kv_heads = self.shard(group[0])["kv_heads"][1] - self.shard(group[0])["kv_heads"][0]
        first_key = begin - m.window + 1 if m.window and begin >= m.window else 0
        visible = range(first_key // self.chunk, (end - 1) // self.chunk + 1)
        if end - begin == 1:
            return self._pass_query(group, owners, visible, members[0], heads[1] - heads[0])
        if self.form == "striped":  # K/V go from where they are computed to where they rest
            moves = Counter((members[p - begin], owners[p // self.chunk]) for p in range(begin, end))
            self._exchange("all_to_all", group, lambda a, b: moves[a, b] * self._page_bytes(kv_heads) // PAGE)
        # Heads of each of `ulysses` ranks; their K/V heads.
        each = (heads[1] - heads[0]) // self.ulysses
        of_part = []
        for part in range(self.ulysses):
            read = {head * m.kv_heads // m.heads for head in range(heads[0] + part * each, heads[0] + (part + 1) * each)}
            of_part.append(len(read))
        nears = [range(first, first + self.ulysses) for first in range(0, cp, self.ulysses)] if self.ulysses > 1 else []
        for near in nears:
            rows = [members.count(rank) for rank in near]
            self._exchange("all_to_all", [group[i] for i in near], lambda a, b: rows[a] * each * m.k_dim * FLOAT)
            self._exchange("all_to_all", [group[i] for i in near], lambda a, b: rows[b] * each * m.v_dim * FLOAT)
        # Keys come in segments of 64 chunks.
        for segment in range(visible.start // SEGMENT, (visible.stop - 1) // SEGMENT + 1):
            chunks = [c for c in visible if c // SEGMENT == segment]
            pages = [sum(-(-min((c + 1) * self.chunk, end) // PAGE) - c * self.chunk // PAGE for c in chunks if owners[c] == rank)
                     for rank in range(cp)]
            if self.form == "all_gather":
                self._exchange("all_gather", group, lambda a, b: pages[a] * self._page_bytes(kv_heads))
                continue
            for near in nears:
                self._exchange("all_to_all", [group[i] for i in near], lambda a, b: pages[near[a]] * self._page_bytes(of_part[b]))
            ring = cp // self.ulysses
            block = [sum(pages[r * self.ulysses:(r + 1) * self.ulysses]) for r in range(ring)]
            for hop in range(ring - 1):
                for r in range(ring):
                    for part in range(self.ulysses):
                        travels = block[(r - hop) % ring] * self._page_bytes(of_part[part])
                        if travels:
                            a, b = group[r * self.ulysses + part], group[(r + 1) % ring * self.ulysses + part]
                            self.counts["cp", "send", self._link(a, b)] += 1
                            self.bytes["cp", "send", self._link(a, b)] += travels

    def _pass_query(self, group, owners, visible, home, heads):
        """A row by itself goes to the keys; one partial result (its sum, and two numbers) comes back for each node of the tree."""
        def nodes(rank, begin, size):
            inside = [c for c in range(begin, begin + size) if c in visible]
            if not inside or all(owners[c] != rank for c in inside):
                return 0
            if all(owners[c] == rank for c in inside):
                return 1
            return nodes(rank, begin, size // 2) + nodes(rank, begin + size // 2, size // 2)

        size = 1
        while size < visible.stop:
            size *= 2
        partials = [nodes(rank, 0, size) for rank in range(len(group))]
        self._exchange("all_to_all", group, lambda a, b: heads * self.model.k_dim * FLOAT if a == home and partials[b] else 0)
        self._exchange("all_to_all", group, lambda a, b: partials[a] * heads * (self.model.v_dim + 2) * FLOAT if b == home else 0)

    def _experts(self, group, rows_of_replicas):
        """What the experts of one layer are expected to move among `group` when every set of experts is as likely."""
        m = self.model
        rows = {}
        for rank in group:
            at = self.coordinates(rank)
            begin, end = shares(rows_of_replicas[at["dp"]][at["cp"]], self.tp)[at["tp"]]
            rows[rank] = end - begin
        pairs = list(itertools.permutations(group, 2))
        nodes = {self.node[rank] for rank in group}
        legs = 2 if self.relayed and len(nodes) > 1 else 1
        for link in {self._link(a, b) for a, b in pairs}:
            self.counts["ep", "routes", link] += 1
            self.counts["ep", "dispatch", link] += legs
            self.counts["ep", "combine", link] += legs
        for a, b in pairs:
            self.bytes["ep", "routes", self._link(a, b)] += 4 * rows[a] * m.top_k
        held = {rank: len(range(*shares(m.experts, self.ep)[self.expert_place(rank)["ep"]])) for rank in group}

        def hit(experts):
            return 1 - Fraction(math.comb(m.experts - experts, m.top_k), math.comb(m.experts, m.top_k))

        def relay(source, node):
            there = [rank for rank in group if self.node[rank] == node]
            place = source - self.node.index(self.node[source])
            same = [rank for rank in there if rank - self.node.index(node) == place]
            return same[0] if same else there[place % len(there)]

        sent = Counter()

        def add(op, a, b, copies):
            if a != b:
                sent["ep", op, self._link(a, b)] += copies * m.hidden * m.travel

        for source in group:
            for rank in group:
                rows_there = rows[source] * hit(held[rank])
                outputs = Fraction(rows[source] * m.top_k * held[rank], m.experts * self.etp)
                if legs == 1 or self.node[source] == self.node[rank]:
                    add("dispatch", source, rank, rows_there)
                    add("combine", rank, source, outputs)
                else:
                    over = relay(source, self.node[rank])
                    add("dispatch", over, rank, rows_there)
                    add("combine", rank, over, outputs)
                    add("combine", over, source, outputs)
            for node in nodes - {self.node[source]} if legs == 2 else ():
                there = {self.expert_place(rank)["ep"]: held[rank] for rank in group if self.node[rank] == node}
                add("dispatch", source, relay(source, node), rows[source] * hit(sum(there.values())))
        for key, amount in sent.items():
            self.bytes[key] += math.floor(amount + Fraction(1, 2))
        # Parts of an expert's outputs, summed among the ranks that share it.
        slots = sum(rows.values()) * m.top_k
        for ep in range(self.ep):
            members = group[ep * self.etp:(ep + 1) * self.etp]
            begin, end = shares(slots, self.ep)[ep]
            bounds = [slot * m.hidden for slot in deal(end - begin, self.etp)]
            leaves = len(m.expert_leaves) - 1
            parts = [len(nodes_of(*shares(leaves, self.etp)[t], leaves)) for t in range(self.etp)]
            self._collective("reduce_scatter", members, lambda a, b: parts[a] * (bounds[b + 1] - bounds[b]), axis="etp")

    def _link(self, a, b):
        return "shm" if self.node[a] == self.node[b] else "ethernet"

    def _exchange(self, op, group, bytes_between):
        self._collective(op, group, lambda a, b: Fraction(bytes_between(a, b), FLOAT), axis="cp")

    def _collective(self, op, group, elements_between, axis="tp"):
        """One operation of a group: a message between every two members, perhaps of nothing."""
        if len(group) == 1:
            return
        pairs = list(itertools.permutations(range(len(group)), 2))
        for link in {self._link(group[a], group[b]) for a, b in pairs}:
            self.counts[axis, op, link] += 1
        for a, b in pairs:
            self.bytes[axis, op, self._link(group[a], group[b])] += FLOAT * elements_between(a, b)

    def _reduce(self, group, leaves, rows, vectors=1):
        """Partial sums of `rows` rows. With sequence parallelism each member is left with its rows; otherwise with an equal
        slice, which it then gives to the others."""
        parts = [len(self.nodes(leaves, tp)) for tp in range(self.tp)]
        width = vectors * self.model.hidden
        if self.sp:
            bounds = [row * width for row in deal(rows, self.tp)]
            return self._collective("reduce_scatter", group, lambda a, b: parts[a] * (bounds[b + 1] - bounds[b]))
        bounds = deal(rows * width, self.tp)
        self._collective("all_reduce", group,
                         lambda a, b: parts[a] * (bounds[b + 1] - bounds[b]) + bounds[a + 1] - bounds[a])

    def _gather_rows(self, group, owned):
        self._collective("all_gather", group, lambda a, b: owned[a] * self.model.hidden)

    def _layer(self, group, layer, rows):
        m, rows_of = self.model, [end - begin for begin, end in shares(rows, self.tp)]
        if self.sp:
            self._gather_rows(group, rows_of)
        if m.whole_norm:  # squares of each head
            for kind in ("heads", "kv_heads"):
                held = [self.shard(rank)[kind] for rank in group]
                self._collective("all_gather", group, lambda a, b: rows * (held[a][1] - held[a][0]))
        self._reduce(group, m.head_leaves, rows)
        travels = m.sparse[layer] and self.travels
        shared = m.sparse[layer] and m.shared_leaves
        # The norm of all rows, which travelling ones do without unless there are shared experts; what each rank combined.
        if (self.sp and (shared or not travels)) or (travels and not self.sp):
            self._gather_rows(group, rows_of)
        if not m.sparse[layer]:
            self._reduce(group, m.width_leaves, rows)
        elif not travels:
            self._reduce(group, m.expert_leaves, rows, vectors=m.top_k)
        if shared:
            self._reduce(group, m.shared_leaves, rows)

    def _send(self, axis, a, b, elements):
        key = axis, "send", self._link(a, b)
        self.counts[key] += 1
        self.bytes[key] += FLOAT * elements

    def _micro_batch(self, cp, dp, rows, all_wanted, has_last):
        """What the ranks of one cp and dp coordinate do with their rows, attention over other ranks' keys aside."""
        m, stages = self.model, self.size["pp"]
        rows_of = [end - begin for begin, end in shares(rows, self.tp)]
        for stage in range(stages):
            group = self.tp_group(cp, dp, stage)
            for layer in range(*shares(len(m.sparse), stages)[stage]):
                self._layer(group, layer, rows)
            if stage < stages - 1:
                for tp, rank in enumerate(group):
                    self._send("pp", rank, self.rank_at(tp=tp, cp=cp, dp=dp, pp=stage + 1),
                               (rows_of[tp] if self.sp else rows) * m.hidden)
                continue
            wanted = rows if all_wanted else int(has_last)
            if self.sp:
                # The last row lies with the last member that has rows.
                owner = max((tp for tp in range(self.tp) if rows_of[tp]), default=0)
                self._gather_rows(group, rows_of if all_wanted else [wanted * (tp == owner) for tp in range(self.tp)])
            for tp, rank in enumerate(group):
                if rank != 0:
                    begin, end = shares(m.vocab, self.tp)[tp]
                    self._send("dp" if dp else "pp" if stage else "cp" if cp else "tp", rank, 0, wanted * (end - begin))
