"""What the routers of a model choose by: order of slots, distance to a tie, weights of given experts."""

import torch


def is_router(module):
    return type(module).__name__.lower().endswith("topkrouter")


def is_deepseek(router):
    return type(router).__name__.startswith("Deepseek")


def has_choice_bias(router):
    return hasattr(router, "e_score_correction_bias")


def scores(router, logits):
    logits = logits.float()
    return logits.sigmoid() if has_choice_bias(router) else logits.softmax(dim=-1)


def choice(router, logits):
    """What experts are compared by, before groups are left out."""
    values = scores(router, logits)
    return values + router.e_score_correction_bias if has_choice_bias(router) else values


def in_order(router, out):
    """(router logits, weights, experts) with the best expert first: DeepSeek's come in any order."""
    logits, weights, experts = (t.clone() for t in out)
    if is_deepseek(router):
        order = choice(router, logits).gather(-1, experts).argsort(dim=-1, descending=True)
        weights, experts = weights.gather(-1, order), experts.gather(-1, order)
    return logits, weights, experts


def gap_after(values, count):
    """Smallest distance between the last of `count` taken and the first left."""
    if count >= values.shape[-1]:
        return float("inf")
    ordered = values.sort(dim=-1, descending=True).values
    return (ordered[:, count - 1] - ordered[:, count]).min().item()


def margins(router, logits):
    """Smallest distances at the cut, between neighbouring slots, and between groups."""
    values, groups = choice(router, logits), float("inf")
    if has_choice_bias(router) or router.topk_method == "group_limited_greedy":
        grouped = values.unflatten(-1, (router.num_group, -1))
        best = grouped.topk(2 if has_choice_bias(router) else 1, dim=-1).values.sum(dim=-1)
        groups = gap_after(best, router.topk_group)
        taken = best.topk(router.topk_group, dim=-1).indices
        open_ = torch.zeros_like(best).scatter(1, taken, 1.0).bool()
        values = grouped.masked_fill(~open_.unsqueeze(-1), float("-inf")).flatten(-2)
    ordered = values.sort(dim=-1, descending=True).values[:, : router.top_k]
    slots = (-ordered.diff(dim=-1)).min().item() if router.top_k > 1 else float("inf")
    return gap_after(values, router.top_k), slots, groups


def weights_of(router, logits, experts):
    weights = scores(router, logits).gather(-1, experts)
    if getattr(router, "norm_topk_prob", not is_deepseek(router)):
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * getattr(router, "routed_scaling_factor", 1.0)
