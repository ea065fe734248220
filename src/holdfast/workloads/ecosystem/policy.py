"""The policy: one network for all of a species; attention over the neighbours an animal sees, then actor and critic.

    net = Policy(SIZES["small"])
    logits, value = net(own, others)                    # all animals of the species in one forward
    with attention("math"): ...                         # which kernel computes the attention: a known remedy

    full    embedding 256, 8 heads, hidden 512     2.9M parameters for both species
    small   embedding 128, 4 heads, hidden 256     0.7M

An animal asks one question of its neighbours, so the keys and values of the neighbours are never computed: the
projections are moved to the side of the question (`q·(K t) = (Kᵀ q)·t`, and `V` comes after the average). That is the
same function with a tenth of the work; reference.py has the usual form, which it is tested against.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.base.errors import UserError
from holdfast.workloads.ecosystem.rules import ACTIONS
from holdfast.workloads.ecosystem.world import NEIGHBOUR_FEATURES, OWN_FEATURES


@dataclass(frozen=True, slots=True)
class Size:
    """How large a network is."""

    embedding: int
    heads: int
    hidden: int
    layers: int = 2


SIZES = {
    "full": Size(256, 8, 512),
    "small": Size(128, 4, 256),
    "tiny": Size(32, 2, 64, layers=1),
}
"""`tiny` is for tests."""
BACKENDS = ("auto", "math", "flash", "efficient")


def size_of(preset: str) -> Size:
    if preset not in SIZES:
        raise UserError(f"unknown preset `{preset}`", cause=f"there are {', '.join(SIZES)}")
    return SIZES[preset]


class Ask(nn.Module):
    """Multi-head attention with one question for each animal."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        wide = size.embedding
        self.heads, self.depth = size.heads, wide // size.heads
        self.query = nn.Linear(wide, wide)
        self.key = nn.Linear(wide, wide, bias=False)  # a bias would be the same for all neighbours: softmax drops it
        self.value = nn.Linear(wide, wide)
        self.out = nn.Linear(wide, wide)

    def forward(self, asking: Tensor, tokens: Tensor) -> Tensor:
        """(animals, wide) and (animals, neighbours, wide) to (animals, wide)."""
        count, wide = asking.shape
        query = self.query(asking).view(count, self.heads, self.depth)
        key = self.key.weight.view(self.heads, self.depth, wide)
        asked = torch.bmm(query.transpose(0, 1), key).transpose(0, 1)  # what each head looks for, in tokens
        there = tokens.unsqueeze(1)
        heard = F.scaled_dot_product_attention(asked.unsqueeze(1), there, there, scale=1.0 / math.sqrt(self.depth))
        value = self.value.weight.view(self.heads, self.depth, wide)
        said = torch.bmm(heard.squeeze(1).transpose(0, 1), value.transpose(1, 2)).transpose(0, 1)
        answer: Tensor = self.out(said.reshape(count, wide) + self.value.bias)
        return answer


class Layer(nn.Module):
    """Ask the neighbours, then think."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        wide = size.embedding
        self.before, self.between = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.ask = Ask(size)
        self.think = nn.Sequential(nn.Linear(wide, size.hidden), nn.ReLU(), nn.Linear(size.hidden, wide))

    def forward(self, own: Tensor, tokens: Tensor) -> Tensor:
        own = own + self.ask(self.before(own), tokens)
        thought: Tensor = own + self.think(self.between(own))
        return thought


class Policy(nn.Module):
    """Actor and critic of a species: a trunk that both share, and a head for each."""

    def __init__(self, size: Size, actions: int = ACTIONS) -> None:
        super().__init__()
        wide, hidden = size.embedding, size.hidden
        self.own = nn.Sequential(nn.Linear(OWN_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, wide))
        self.other = nn.Linear(NEIGHBOUR_FEATURES, wide)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.last = nn.LayerNorm(wide)
        self.actor = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, actions))
        self.critic = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        with torch.no_grad():  # a young policy tries everything, and expects nothing
            for head, gain in ((self.actor, 0.01), (self.critic, 0.1)):
                last = head[-1]
                assert isinstance(last, nn.Linear)
                nn.init.orthogonal_(last.weight, gain)
                last.bias.zero_()

    def forward(self, own: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the actions and the value, in fp32."""
        state = self.own(own)
        tokens = F.relu(self.other(others)) * others[..., -1:]  # nobody is nothing: no mask, so that any kernel will do
        for layer in self.layers:
            state = layer(state, tokens.to(state.dtype))
        state = self.last(state)
        return self.actor(state).float(), self.critic(state).float().squeeze(-1)


def parameters(*nets: nn.Module) -> int:
    return sum(each.numel() for net in nets for each in net.parameters())


@contextlib.contextmanager
def attention(backend: str, device: torch.device | None = None) -> Iterator[None]:
    """Compute attention with this kernel alone; `auto` lets torch choose."""
    check_attention(backend, device)
    if backend == "auto":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {
        "math": SDPBackend.MATH,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    with sdpa_kernel(kinds[backend]):
        yield


def check_attention(backend: str, device: torch.device | None = None) -> None:
    """UserError for a kernel that does not exist, or not there."""
    if backend not in BACKENDS:
        raise UserError(f"unknown attention `{backend}`", cause=f"there are {', '.join(BACKENDS)}")
    if backend == "efficient" and device is not None and device.type == "cpu":
        raise UserError("attention=efficient does not exist on the CPU", hints=["attention=auto, math or flash"])
