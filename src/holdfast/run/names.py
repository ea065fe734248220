"""Names for runs that a person can say: calm-heron."""

from __future__ import annotations

import random

_ADJECTIVES = """
    amber bold brave bright brisk calm candid clear cobalt crisp deep eager early fair fleet fond frank gentle
    glad golden grand hardy hazel honest humble jolly keen kind lively lucid lucky mellow merry mild misty
    modest neat noble olive patient plain plucky polite prime proud quick quiet rapid ready royal rustic sandy
    sharp silent silver sincere slate sober solid spry stable steady still stout sturdy sunny sure swift tidy
    tranquil true upbeat vivid warm wise witty young zesty
"""
_ANIMALS = """
    auk badger bat bear beaver bison bittern boar bobcat bream buck bunting carp cod condor coot coyote crane
    crow curlew deer dipper dove duck dunlin eagle egret elk ermine falcon ferret finch fox gannet gecko goat
    goose grouse gull hare hawk heron hoopoe ibex ibis jackdaw jay kestrel kite lark lemur linnet lynx marten
    martin merlin mole moose moth newt oriole osprey otter owl oyster pelican perch petrel pike pipit plover
    puffin quail rail raven robin rook ruff salmon seal shrew shrike siskin skua snipe sparrow stoat stork swan
    swift teal tern thrush trout vole wagtail walrus weasel whale wolf wombat wren yak zebra
"""


def new_name(taken: set[str]) -> str:
    """A name a person can say; drawn from the system's own randomness, never from the user's seed."""
    source = random.SystemRandom()
    adjectives, animals = _ADJECTIVES.split(), _ANIMALS.split()
    for _ in range(100):
        name = f"{source.choice(adjectives)}-{source.choice(animals)}"
        if name not in taken:
            return name
    return f"{name}-{source.randrange(1000, 9999)}"
