"""Meeting the ranks of this very start, in a store that still holds what those of earlier starts have written.

    store = meet(TCPStore(...), rank, ranks, patience=60.0)       # a corner of the store that is this start's alone

The agent keeps one store for all restarts, and process groups look for each other under the same names each time: a
new rank may find the address of one that was killed, and waits for it for ever (torch 2.12). No number in the
environment tells the starts apart on all machines. So the ranks shake hands: the first makes an offer with a word
nobody has used before, each of the others answers to that offer with a word of its own, and the first names all the
answers. Who finds its own word among them has met ranks that live.
"""

from __future__ import annotations

import json
import secrets
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store

_NAP = 0.02
_OFFER = "holdfast/offer"


def meet(store: Store, rank: int, ranks: int, *, patience: float) -> Store:
    """The part of `store` for this start; TimeoutError if some never come."""
    mine = secrets.token_hex(8)
    deadline = time.monotonic() + patience
    store.set_timeout(timedelta(seconds=patience))
    word = _invite(store, ranks, mine, deadline) if rank == 0 else _accept(store, rank, mine, deadline)
    return PrefixStore(f"holdfast/{word}", store)


def _invite(store: Store, ranks: int, word: str, deadline: float) -> str:
    store.set(_OFFER, word)
    answers = {}
    for rank in range(1, ranks):
        answers[rank] = _await(store, _answer(word, rank), deadline)
    store.set(_settled(word), json.dumps(sorted(answers.values())))
    for rank in range(1, ranks):  # an answer may have come again, from the successor of one that has died
        if _await(store, _answer(word, rank), deadline) != answers[rank]:
            raise ConnectionError(f"rank {rank} was lost while the ranks met")
    return word


def _accept(store: Store, rank: int, mine: str, deadline: float) -> str:
    while True:
        word = _await(store, _OFFER, deadline)
        store.set(_answer(word, rank), mine)
        until = min(deadline, time.monotonic() + 0.5)
        while time.monotonic() < until:
            if store.check([_settled(word)]) and mine in json.loads(store.get(_settled(word))):
                return word
            if store.get(_OFFER).decode() != word:
                break
            time.sleep(_NAP)
        if time.monotonic() >= deadline:
            raise TimeoutError("the first rank did not connect")


def _await(store: Store, key: str, deadline: float) -> str:
    while not store.check([key]):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"no process has written {key}")
        time.sleep(_NAP)
    return str(store.get(key).decode())


def _answer(word: str, rank: int) -> str:
    return f"holdfast/answer/{word}/{rank}"


def _settled(word: str) -> str:
    return f"holdfast/settled/{word}"
