"""A thousand random damages to real checkpoints: each is noticed, its reason is named, the newest good one is used."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.base.files import remove
from holdfast.run.digests import BadDigests, Digests
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.state import checkpoint
from holdfast.state.checkpoint import Checkpoint, Damaged
from tests.state.checkpoints import payload

DAMAGES = 1_000
STEPS = (10, 20, 30)
Random = random.Random


class World:
    """Two runs with three checkpoints each; ours can be put back as it was."""

    def __init__(self, root: Path) -> None:
        self.ours = self._run(root / "ours", seed=0)
        self.other = self._run(root / "other", seed=100)
        self.elsewhere = root / "elsewhere"
        self.elsewhere.mkdir()
        self.pristine = {path: path.read_bytes() for path in self.ours.rglob("*") if path.is_file()}

    def _run(self, root: Path, seed: int) -> Path:
        run = RunFolder.create(root, "job", {"created": f"2026-11-15T09:{seed % 60:02d}:00.000Z"})
        for step in STEPS:
            saved = checkpoint.write(run.path / "checkpoints", payload(seed + step), step=step)
            run.append(Event.now("checkpoint", step=step, path=str(saved.path), seconds=0.0))
        run.close()
        return run.path

    def at(self, step: int) -> Path:
        return self.ours / "checkpoints" / f"{step:06d}"

    def file(self, rng: Random, step: int) -> Path:
        """The state or its digests, as often the one as the other."""
        return self.at(step) / rng.choice([checkpoint.STATE, checkpoint.DIGEST])

    def others(self, rng: Random, step: int) -> Path:
        """A good checkpoint that is not this one: of another step, or of another run."""
        elsewhere = self.other / "checkpoints"
        other_step = rng.choice([number for number in STEPS if number != step])
        return rng.choice([self.at(other_step), elsewhere / f"{step:06d}", elsewhere / f"{other_step:06d}"])

    def whole(self, path: Path) -> bytes:
        """A file as it was written."""
        return self.pristine.get(path) or path.read_bytes()

    def repair(self) -> None:
        """Only what is different: a thousand times six files would keep a disk busy for half a minute."""
        for link in self.elsewhere.iterdir():
            remove(link)
        for path in [self.at(step) for step in STEPS]:
            if path.is_symlink() or not path.is_dir():
                remove(path)
                path.mkdir()
        for path, data in self.pristine.items():
            plain = path.is_file() and not path.is_symlink()
            if not plain or path.read_bytes() != data:
                remove(path)
                path.write_bytes(data)


def rewrite(path: Path, data: bytes) -> None:
    assert data != path.read_bytes(), "this damage would be none"
    path.write_bytes(data)


# Ways to damage the checkpoint of a step. Each says what was done, for the message of a failure.


def flip_a_bit(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    data = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    rewrite(path, bytes(data))
    return f"bit {bit} of byte {at} of {path.name}"


def change_some_bytes(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    data = bytearray(path.read_bytes())
    places = rng.sample(range(len(data)), rng.randint(2, 50))
    for at in places:
        data[at] ^= rng.randint(1, 255)
    rewrite(path, bytes(data))
    return f"bytes {sorted(places)} of {path.name}"


def cut_off(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} cut to {size} bytes"


def empty(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    os.truncate(path, 0)
    return f"{path.name} empty"


def half_written(world: World, rng: Random, step: int) -> str:
    """A power cut: the size is there, the blocks are not."""
    path = world.at(step) / checkpoint.STATE
    data = path.read_bytes()
    size = rng.randrange(len(data) // 2)
    rewrite(path, data[:size] + bytes(len(data) - size))
    return f"{path.name} only zeros from {size} on"


def zero_a_block(world: World, rng: Random, step: int) -> str:
    path = world.at(step) / checkpoint.STATE
    data = path.read_bytes()
    full = [at for at in range(0, len(data), 512) if any(data[at : at + 512])]
    at = rng.choice(full)
    rewrite(path, data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :])
    return f"512 bytes at {at} of {path.name} are zero"


def swap_two_blocks(world: World, rng: Random, step: int) -> str:
    """A misdirected write."""
    path = world.at(step) / checkpoint.STATE
    data = path.read_bytes()
    blocks = [data[at : at + 512] for at in range(0, len(data) // 512 * 512, 512)]
    first = rng.randrange(len(blocks))
    second = rng.choice([number for number, block in enumerate(blocks) if block != blocks[first]])
    blocks[first], blocks[second] = blocks[second], blocks[first]
    rewrite(path, b"".join(blocks) + data[len(blocks) * 512 :])
    return f"blocks {first} and {second} of {path.name} swapped"


def append_garbage(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    more = rng.choice([b"\n", b" ", b"\0", rng.randbytes(rng.randint(1, 5000))])
    path.write_bytes(path.read_bytes() + more)
    return f"{len(more)} bytes more in {path.name}"


def remove_a_file(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    path.unlink()
    return f"{path.name} missing"


def remove_the_folder(world: World, rng: Random, step: int) -> str:
    shutil.rmtree(world.at(step))
    return "the folder missing"


def a_folder_in_its_place(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    path.unlink()
    path.mkdir()
    return f"{path.name} is a folder"


def a_file_in_its_place(world: World, rng: Random, step: int) -> str:
    shutil.rmtree(world.at(step))
    world.at(step).write_bytes(rng.randbytes(100))
    return "the folder is a file"


def a_link_in_its_place(world: World, rng: Random, step: int) -> str:
    """To the right bytes, to others, or to nowhere; of a file, or of the whole folder."""
    path = rng.choice([world.file(rng, step), world.at(step)])
    where = rng.choice(["same", "other", "nowhere"])
    away = world.elsewhere / str(step)
    if where == "same":
        path.rename(away)
    else:
        remove(path)
    target = {"same": away, "other": Path("/dev/zero"), "nowhere": world.ours / "nowhere"}[where]
    path.symlink_to(target)
    return f"{path.name} is a link to {target}"


def a_pipe_in_its_place(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    path.unlink()
    os.mkfifo(path)
    return f"{path.name} is a pipe"


def a_file_of_another(world: World, rng: Random, step: int) -> str:
    path = world.file(rng, step)
    source = world.others(rng, step) / path.name
    rewrite(path, world.whole(source))
    return f"{path.name} is that of {source.parent}"


def the_whole_of_another(world: World, rng: Random, step: int) -> str:
    """A checkpoint that is good in itself, but not this one."""
    source = world.others(rng, step)
    for name in (checkpoint.STATE, checkpoint.DIGEST):
        rewrite(world.at(step) / name, world.whole(source / name))
    return f"all of {source}"


def an_older_one_of_ours(world: World, rng: Random, step: int) -> str:
    """digest.json as holdfast wrote it before each tensor had a digest."""
    path = world.at(step) / checkpoint.DIGEST
    path.write_text(f'{{"schema": 1, "step": {step}, "bytes": 5, "sha256": "00"}}\n')
    return "digest.json of an older format"


WAYS: list[Callable[[World, Random, int], str]] = [
    flip_a_bit,
    change_some_bytes,
    cut_off,
    empty,
    half_written,
    zero_a_block,
    swap_two_blocks,
    append_garbage,
    remove_a_file,
    remove_the_folder,
    a_folder_in_its_place,
    a_file_in_its_place,
    a_link_in_its_place,
    a_pipe_in_its_place,
    a_file_of_another,
    the_whole_of_another,
    an_older_one_of_ours,
]


IN_PLACE = [way for way in WAYS if way is not remove_the_folder]
"""A folder that is missing is known by the journal alone, which names the newest."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield World(tmp_path_factory.mktemp("world"))


@pytest.mark.all
def test_a_thousand_random_damages_are_all_noticed(world: World) -> None:
    rng = Random(3600)
    noticed: Counter[str] = Counter()
    for number in range(DAMAGES):
        world.repair()
        if number % 10 == 0:
            assert check_all(world) == {10: None, 20: None, 30: None}, "a false alarm"
        damaged = {30: rng.choice(WAYS)} | ({20: rng.choice(IN_PLACE)} if rng.random() < 0.2 else {})
        story = ", ".join(f"step {step}: {way(world, rng, step)}" for step, way in damaged.items())
        good, rejected = checkpoint.newest_good(world.ours / "checkpoints")
        assert good is not None and good.step == (10 if 20 in damaged else 20), f"{number}: {story}: {good}"
        said = [path for path, reason in rejected if reason]
        if damaged[30] is remove_the_folder:
            said.insert(0, checkpoint.lost(world.ours) or Path())
        assert said == [world.at(step) for step in damaged], f"{number}: {story}: {said}"
        noticed.update(way.__name__ for way in damaged.values())
    assert sum(noticed.values()) >= DAMAGES
    assert set(noticed) == {way.__name__ for way in WAYS}, "every way was tried"


def check_all(world: World) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    for step in STEPS:
        result = checkpoint.check(world.at(step))
        assert isinstance(result, (Checkpoint, Damaged))
        found[step] = None if isinstance(result, Checkpoint) else str(result)
    return found


def test_every_single_byte_of_the_digests_counts(world: World) -> None:
    """Not a sample: each byte of digest.json, one of its bits at a time."""
    world.repair()
    whole = (world.at(30) / checkpoint.DIGEST).read_bytes()
    assert Digests.unseal(whole).step == 30
    for at in range(len(whole)):
        with pytest.raises(BadDigests):
            Digests.unseal(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])


def test_all_of_them_damaged_is_none_with_every_reason(world: World) -> None:
    rng = Random(1)
    for _ in range(50):
        world.repair()
        stories = [rng.choice(IN_PLACE)(world, rng, step) for step in STEPS]
        good, rejected = checkpoint.newest_good(world.ours / "checkpoints")
        assert good is None, stories
        assert [path.name for path, _ in rejected] == ["000030", "000020", "000010"]
