"""The toy's arithmetic, as Qwen3MoeForCausalLM computes it, with experts that train fast on a CPU.

Tokens are sorted by expert once a layer, and each expert multiplies its own rows: no padding, no
mask over all tokens. `state_dict_hf` gives the weights under the names that transformers reads.
"""
import dataclasses

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    vocab: int = 2048
    hidden: int = 192
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    experts: int = 32
    top_k: int = 2
    expert_width: int = 64
    rope_theta: float = 1e6
    eps: float = 1e-6
    max_positions: int = 32768

    def hf_config(self, bos, eos, pad):
        from transformers import Qwen3MoeConfig

        return Qwen3MoeConfig(
            vocab_size=self.vocab, hidden_size=self.hidden, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim, num_experts=self.experts, num_experts_per_tok=self.top_k,
            moe_intermediate_size=self.expert_width, intermediate_size=2 * self.expert_width,
            decoder_sparse_step=1, mlp_only_layers=[], norm_topk_prob=True,
            rms_norm_eps=self.eps, tie_word_embeddings=True, attention_bias=False,
            max_position_embeddings=self.max_positions, router_aux_loss_coef=0.05,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            architectures=["Qwen3MoeForCausalLM"], dtype="bfloat16",
            bos_token_id=bos, eos_token_id=eos, pad_token_id=pad)


class GroupedLinear(torch.autograd.Function):
    """Rows sorted by expert [rows, in] times each expert's own weight [experts, out, in]."""

    @staticmethod
    def forward(ctx, rows, weight, counts):
        ctx.save_for_backward(rows, weight)
        ctx.counts = counts
        out = rows.new_empty(rows.shape[0], weight.shape[1])
        begin = 0
        for expert, count in enumerate(counts):
            if count:
                torch.mm(rows[begin:begin + count], weight[expert].t(),
                         out=out[begin:begin + count])
            begin += count
        return out

    @staticmethod
    def backward(ctx, grad):
        rows, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_rows, grad_weight = torch.empty_like(rows), torch.zeros_like(weight)
        begin = 0
        for expert, count in enumerate(ctx.counts):
            if count:
                part = slice(begin, begin + count)
                torch.mm(grad[part], weight[expert], out=grad_rows[part])
                torch.mm(grad[part].t(), rows[part], out=grad_weight[expert])
            begin += count
        return grad_rows, grad_weight, None


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up over [rows, 2 * width]: one pass each way, nothing kept but the input."""

    @staticmethod
    def forward(ctx, gate_up):
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors[0].chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        return torch.cat([grad * up * (sigmoid + silu * (1 - sigmoid)), grad * silu], dim=-1)


class RmsNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last axis; four passes where autograd's own takes nine."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.rsqrt(norm.square() / x.shape[-1] + eps)
        unit = x * scale
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight

    @staticmethod
    def backward(ctx, grad):
        unit, scale, weight = ctx.saved_tensors
        size = unit.shape[-1]
        product = grad * unit
        grad_weight = product.reshape(-1, size).sum(dim=0)
        mean = (product.reshape(-1, size) @ weight / size).view(scale.shape)
        grad_x = (grad * weight).addcmul_(unit, mean, value=-1).mul_(scale)
        return grad_x, grad_weight, None


class Layer(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape, self.dropout = shape, 0.0
        h, d = shape.hidden, shape.head_dim

        def normal(*sizes, scale=0.02):
            return torch.nn.Parameter(torch.randn(*sizes) * scale)

        out_scale = 0.02 / (2 * shape.layers) ** 0.5
        self.norm_attn = torch.nn.Parameter(torch.ones(h))
        self.norm_mlp = torch.nn.Parameter(torch.ones(h))
        self.norm_q = torch.nn.Parameter(torch.ones(d))
        self.norm_k = torch.nn.Parameter(torch.ones(d))
        self.qkv = normal((shape.heads + 2 * shape.kv_heads) * d, h, scale=0.04)
        self.out = normal(h, shape.heads * d, scale=out_scale)
        self.router = normal(shape.experts, h)
        self.gate_up = normal(shape.experts, 2 * shape.expert_width, h, scale=0.04)
        self.down = normal(shape.experts, h, shape.expert_width, scale=2 * out_scale)

    def attention(self, x, cos, sin):
        """x [batch, length, hidden]; cos and sin [length, head_dim]."""
        shape = self.shape
        batch, length, _ = x.shape
        q, k, v = F.linear(x, self.qkv).view(batch, length, -1, shape.head_dim).split(
            [shape.heads, shape.kv_heads, shape.kv_heads], dim=2)
        q = RmsNorm.apply(q, self.norm_q, shape.eps)
        k = RmsNorm.apply(k, self.norm_k, shape.eps)
        qk = torch.cat([q, k], dim=2).transpose(1, 2)
        low, high = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat([-high, low], dim=-1) * sin
        q, k = qk.split([shape.heads, shape.kv_heads], dim=1)
        group = shape.heads // shape.kv_heads
        k = k.repeat_interleave(group, dim=1)
        v = v.transpose(1, 2).repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(y.transpose(1, 2).reshape(batch, length, -1), self.out)

    def experts(self, x):
        """x [rows, hidden] -> (out, balance loss, assignments by expert)."""
        shape = self.shape
        probs = F.linear(x, self.router).softmax(dim=-1)
        weight, chosen = probs.topk(shape.top_k, dim=-1)
        weight = weight / weight.sum(dim=-1, keepdim=True)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=shape.experts)
        load = counts / x.shape[0]
        balance = shape.experts * (load * probs.mean(dim=0)).sum()
        counts_list = counts.tolist()
        rows = GatherRows.apply(x, order, shape.top_k)
        hidden = SwiGlu.apply(GroupedLinear.apply(rows, self.gate_up, counts_list))
        rows = GroupedLinear.apply(hidden, self.down, counts_list)
        out = Unsort.apply(rows, order).view(-1, shape.top_k, shape.hidden)
        return torch.bmm(weight.unsqueeze(1), out).squeeze(1), balance, counts

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def forward(self, x, cos, sin):
        x = x + self.drop(self.attention(RmsNorm.apply(x, self.norm_attn, self.shape.eps),
                                         cos, sin))
        flat = RmsNorm.apply(x, self.norm_mlp, self.shape.eps).view(-1, self.shape.hidden)
        y, balance, counts = self.experts(flat)
        return x + self.drop(y).view_as(x), balance, counts


class GatherRows(torch.autograd.Function):
    """Each token's row once for each of its slots, in the order of the experts."""

    @staticmethod
    def forward(ctx, x, order, top_k):
        ctx.order, ctx.top_k = order, top_k
        return x.index_select(0, order // top_k)

    @staticmethod
    def backward(ctx, grad):
        back = torch.empty_like(grad)
        back[ctx.order] = grad
        return back.view(-1, ctx.top_k, grad.shape[-1]).sum(dim=1), None, None


class Unsort(torch.autograd.Function):
    """Rows in the order of the experts back to the order of the slots."""

    @staticmethod
    def forward(ctx, rows, order):
        ctx.order = order
        out = torch.empty_like(rows)
        out[order] = rows
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad.index_select(0, ctx.order), None


class Toy(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed = torch.nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.02)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = torch.nn.Parameter(torch.ones(shape.hidden))

    def forward(self, tokens):
        """tokens [batch, length] -> (logits, balance loss, assignments [layers, experts])."""
        half = self.shape.head_dim // 2
        steps = self.shape.rope_theta ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(tokens.shape[1]), steps).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(tokens, self.embed)
        balance, counts = 0.0, []
        for layer in self.layers:
            x, layer_balance, layer_counts = layer(x, cos, sin)
            balance = balance + layer_balance / self.shape.layers
            counts.append(layer_counts)
        x = RmsNorm.apply(x, self.norm, self.shape.eps)
        return F.linear(x, self.embed), balance, torch.stack(counts)

    def state_dict_hf(self, dtype=torch.bfloat16):
        """The weights under transformers' names; the tied head is left out, as it does."""
        shape = self.shape
        tensors = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        sizes = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        for number, layer in enumerate(self.layers):
            base = f"model.layers.{number}."
            q, k, v = layer.qkv.split(sizes)
            tensors |= {base + "input_layernorm.weight": layer.norm_attn,
                        base + "post_attention_layernorm.weight": layer.norm_mlp,
                        base + "self_attn.q_norm.weight": layer.norm_q,
                        base + "self_attn.k_norm.weight": layer.norm_k,
                        base + "self_attn.q_proj.weight": q, base + "self_attn.k_proj.weight": k,
                        base + "self_attn.v_proj.weight": v,
                        base + "self_attn.o_proj.weight": layer.out,
                        base + "mlp.gate.weight": layer.router}
            for expert in range(shape.experts):
                gate, up = layer.gate_up[expert].chunk(2)
                name = f"{base}mlp.experts.{expert}."
                tensors |= {name + "gate_proj.weight": gate, name + "up_proj.weight": up,
                            name + "down_proj.weight": layer.down[expert]}
        return {name: t.detach().to(dtype).contiguous() for name, t in tensors.items()}
