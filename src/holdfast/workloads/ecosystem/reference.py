"""The usual way to compute the same policy: what policy.py is tested against, and measured against.

    logits, value = usual_forward(net, own, others)            # keys and values of every neighbour, as in textbooks
    logits, value = one_at_a_time(net, own, others)            # and one animal after the other: how it often starts

Both use the weights of a `Policy` and give its numbers up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.workloads.ecosystem.policy import Ask, Layer, Policy


def usual_ask(ask: Ask, asking: Tensor, tokens: Tensor) -> Tensor:
    """Multi-head attention with keys and values projected for each neighbour."""
    count, seen, wide = tokens.shape
    query = ask.query(asking).view(count, 1, ask.heads, ask.depth).transpose(1, 2)
    key = ask.key(tokens).view(count, seen, ask.heads, ask.depth).transpose(1, 2)
    value = ask.value(tokens).view(count, seen, ask.heads, ask.depth).transpose(1, 2)
    heard = F.scaled_dot_product_attention(query, key, value)
    answer: Tensor = ask.out(heard.transpose(1, 2).reshape(count, wide))
    return answer


def usual_forward(net: Policy, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    state = net.own(own)
    tokens = F.relu(net.other(others)) * others[..., -1:]
    for layer in net.layers:
        assert isinstance(layer, Layer)
        state = state + usual_ask(layer.ask, layer.before(state), tokens)
        state = state + layer.think(layer.between(state))
    state = net.last(state)
    return net.actor(state).float(), net.critic(state).float().squeeze(-1)


def one_at_a_time(net: Policy, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    rows = [usual_forward(net, own[at : at + 1], others[at : at + 1]) for at in range(len(own))]
    return torch.cat([logits for logits, _ in rows]), torch.cat([value for _, value in rows])
