# ruff: noqa: UP031
# mypy: ignore-errors
"""`holdfast run --exact`, inside of a script: starts holdfast.integrations.exact at the first step of an optimizer.

Loaded by _holdfast_hook.py, under the same rules: the standard library alone until the script has imported torch, no
syntax newer than Python 3.8, and no error that could reach the script.

  steps     the engine is called after each optimizer.step()
  loaders   as an iterator of a DataLoader begins, the generators that its order is drawn from are noted
  files     those that the script opens to append to
"""

import os
import sys

_hook = None


def start(hook):
    """Before the script begins."""
    global _hook
    _hook = hook
    hook.ACTS["torch.utils.data.dataloader"] = _loader_is_here
    sys.addaudithook(_note_open)


def torch_is_here(module):
    """torch.optim.optimizer was imported."""
    _exact_step._torchdynamo_disable = True
    module.register_optimizer_step_post_hook(_exact_step)


_engine = None


def _exact_step(optimizer, args, kwargs, getpid=os.getpid):
    """The first call starts holdfast.integrations.exact, which connects to the supervisor; each one is a step."""
    global _engine
    if _engine is None:
        if _hook._mine != getpid():
            return
        try:
            if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
                raise RuntimeError("several processes train one model, and each has a state of its own")
            _engine = _exact_module("engine").start() or False
        except Exception as error:
            _engine = False
            cause = str(getattr(error, "cause", None) or type(error).__name__)
            _hook._write("exact.json", {"reason": "%s (%s)" % (str(error)[:2000], cause[:2000])})
    if _engine is not False:
        _engine(optimizer, sys._getframe(1))


def _exact_module(name):
    """A module of holdfast in the script's own Python, which may not have it installed."""
    import importlib

    try:
        return importlib.import_module("holdfast.integrations.exact." + name)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("holdfast"):
            raise
    package = os.path.abspath(__file__)
    for _ in range(5):  # hook, scripts, supervisor, holdfast, and the folder that it lies in
        package = os.path.dirname(package)
    sys.path.append(package)
    return importlib.import_module("holdfast.integrations.exact." + name)


_appended = {}


def _note_open(event, args):
    """Files that the script opens to append to: after a restart they are as long as they were."""
    if event == "open" and isinstance(args[1], str) and "a" in args[1]:
        try:
            _appended[os.path.abspath(os.fsdecode(args[0]))] = True
        except (TypeError, ValueError):
            pass


def _loader_is_here(module):
    """An iterator of a DataLoader begins: the generators that its order is drawn from are noted."""
    base = module._BaseDataLoaderIter
    make, reset = base.__init__, base._reset

    def __init__(self, loader):
        _note_loader(self, loader)
        make(self, loader)

    def _reset(self, loader, first_iter=False):
        if not first_iter:
            _note_loader(self, loader)
        reset(self, loader, first_iter)

    base.__init__, base._reset = __init__, _reset


def _note_loader(iterator, loader):
    try:
        _exact_module("loader_notes").note(iterator, loader)
    except Exception:
        pass
