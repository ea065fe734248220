"""CUDA graphs: every kernel of a call recorded once for each size of batch, and then launched as one.

A small model at batch 1 leaves a GPU waiting for its next kernel most of the time. The graph is that of torch.export;
for bf16 and fp16 it is taken under autocast, and weights are cast once, here, instead of in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.optimize.engines.running import HALF, Arrays, Engine, Predict

FILE = "model.json"
TRAVELS = ("graph.py",)
DEVICE = "cuda"
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
PREDICT = Predict(
    "torch with a GPU, safetensors, numpy",
    "import torch\nfrom graph import load",
    """torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {tf32}
module, recorded = load(HERE / "{file}"), {{}}

@torch.no_grad()
def predict(*inputs):
    asked = [torch.from_numpy(np.asarray(x, kind)).cuda() for x, kind in zip(inputs, {kinds})]
    if len(asked[0]) not in recorded:
        module(*asked), torch.cuda.synchronize()  # whatever is chosen and reserved in a first call
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            found = module(*asked)
        recorded[len(asked[0])] = graph, asked, found if isinstance(found, (tuple, list)) else [found]
    graph, given, found = recorded[len(asked[0])]
    [mine.copy_(each) for mine, each in zip(given, asked)], graph.replay()
    return {post}([each.float().cpu().numpy() for each in found])
""",
)
MOST = 64
"""Inputs of one replay; more are taken in pieces."""
WARM = 3


def blanks(about: dict[str, Any]) -> dict[str, str]:
    return {"tf32": repr(about["precision"] == "tf32")}


def build(work: Path, about: dict[str, Any], target: Path) -> None:
    import torch

    from holdfast.optimize.build import examples, exported, model_of
    from holdfast.optimize.graph_writer import write

    device = about.get("device", DEVICE)
    model, given = model_of(work, about).to(device), tuple(each.to(device) for each in examples(work))
    kind = HALF.get(about["precision"])
    if kind is None:
        found = exported(model, given)
    else:
        cast = exported(_cast(model, device, getattr(torch, kind)), given, gathered=True).run_decompositions({})
        found = exported(fold(cast.module()), given)  # again: casts of weights are weights now
    write(found, target)


def _cast(model: Any, device: str, kind: Any) -> Any:
    import torch

    class Cast(torch.nn.Module):
        """Autocast that is part of the graph."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            with torch.autocast(device, dtype=kind):
                return self.model(*inputs)

    return Cast()


def fold(module: Any) -> Any:
    """What depends on weights alone is computed now: their casts and transposes, above all."""
    import torch

    known: dict[Any, Any] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            known[node] = _at(module, node.target)
        elif (
            node.op == "call_function" and node.all_input_nodes and all(each in known for each in node.all_input_nodes)
        ):
            args, more = (torch.fx.map_arg(each, known.__getitem__) for each in (node.args, node.kwargs))
            with torch.no_grad():
                value = node.target(*args, **more)
            if not isinstance(value, torch.Tensor):
                continue
            name = f"folded_{len(known)}"
            module.register_buffer(name, value)
            with module.graph.inserting_before(node):
                new = module.graph.get_attr(name)
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)
            known[new] = value
    module.graph.eliminate_dead_code()
    module.recompile()
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name not in used]:
        owner, _, last = name.rpartition(".")
        delattr(_at(module, owner) if owner else module, last)
    return module


def _at(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def load(path: Path, about: dict[str, Any]) -> Engine:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("it was made for a GPU, and PyTorch finds none here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = about["precision"] == "tf32"
    from holdfast.optimize.graph import load as load_graph

    module = load_graph(path)
    recorded: dict[int, _Recorded] = {}

    def together(asked: Sequence[Sequence[NDArray[Any]]]) -> Arrays:
        """Each one's rows go straight to the memory that the card reads."""
        count = sum(len(inputs[0]) for inputs in asked)
        if count > MOST:
            return run([np.concatenate(column) for column in zip(*asked, strict=True)])
        size = 1 << (count - 1).bit_length()
        if size not in recorded:
            recorded[size] = _Recorded(module, asked[0], size)
        return recorded[size](asked)

    def run(inputs: Sequence[NDArray[Any]]) -> Arrays:
        if len(inputs[0]) <= MOST:
            return together([inputs])
        parts = [together([[each[at : at + MOST] for each in inputs]]) for at in range(0, len(inputs[0]), MOST)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    return Engine(run, together=together)


class _Recorded:
    """The kernels for one size of batch, with the memory they read and write."""

    def __init__(self, module: Any, inputs: Sequence[NDArray[Any]], size: int) -> None:
        import torch

        first = [torch.from_numpy(np.resize(each, (size, *each.shape[1:]))) for each in inputs]
        self._asked = [each.pin_memory() for each in first]  # the card fetches from there without a copy in between
        self._given = [each.cuda() for each in first]
        with torch.no_grad():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM):
                    module(*self._given)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                found = module(*self._given)
                self._found = [each.float() for each in (found if isinstance(found, tuple | list) else [found])]
        self._told = [torch.empty_like(each, device="cpu").pin_memory() for each in self._found]
        self._views = [each.numpy() for each in self._asked]
        self._answers = [each.numpy() for each in self._told]
        self._wait = torch.cuda.current_stream().synchronize

    def __call__(self, asked: Sequence[Sequence[NDArray[Any]]]) -> Arrays:
        count = 0
        for inputs in asked:
            until = count + len(inputs[0])
            for view, each in zip(self._views, inputs, strict=True):
                view[count:until] = each
            count = until
        for mine, given in zip(self._asked, self._given, strict=True):
            given[:count].copy_(mine[:count], non_blocking=True)
        self._graph.replay()
        for told, found in zip(self._told, self._found, strict=True):
            told.copy_(found, non_blocking=True)
        self._wait()
        return [each[:count].copy() for each in self._answers]
