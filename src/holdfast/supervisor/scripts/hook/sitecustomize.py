# mypy: ignore-errors
# Put on PYTHONPATH by `holdfast run`. It starts the hook beside it and then makes room for the sitecustomize
# that would have been imported without it. It must never be the reason why a script does not start.
import os
import sys


def _without_us():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    return here


def _start(here):
    try:
        import importlib.util

        spec = importlib.util.spec_from_file_location("_holdfast_hook", os.path.join(here, "_holdfast_hook.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules["_holdfast_hook"] = module
        spec.loader.exec_module(module)
        module.start()
    except Exception:
        sys.modules.pop("_holdfast_hook", None)


def _theirs():
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        # Not there without us: `site` takes this error for that, and no trace of us stays in sys.modules.
        raise ImportError("there is no sitecustomize", name="sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start(_without_us())
_theirs()
