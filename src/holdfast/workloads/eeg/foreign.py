"""The models that are not ours: whether braindecode is there and has one of this name. Nothing is imported to see.

foreign.check("EEGNeX")         # UserError, with the command that installs it or a similar name, if there is none
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from pathlib import Path

from holdfast.base.errors import UserError

OWN = ("tempo", "transformer", "unet")
"""Names that are ours; any other is looked up in braindecode."""


def check(name: str) -> None:
    """UserError unless braindecode is there and has a model of this name. Importing it takes long, so it is not."""
    spec = importlib.util.find_spec("braindecode")
    if spec is None or not spec.submodule_search_locations:
        hints = ["pip install 'holdfast[eeg]'"]
        raise UserError(f"the model {name} is braindecode's", cause="braindecode is not installed", hints=hints)
    known = _exported(Path(spec.submodule_search_locations[0]) / "models" / "__init__.py")
    if known and name not in known:
        close = difflib.get_close_matches(name, [*OWN, *known], n=1)
        raise UserError(
            f"unknown model `{name}`",
            cause=f"our own are {', '.join(OWN)}; others are braindecode's",
            hints=[f"a similar model exists: `{close[0]}`"] if close else [],
        )


def _exported(path: Path) -> list[str]:
    """The classes that a package imports into itself, read off its source; none if it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [alias.asname or alias.name for node in imports for alias in node.names]
    return [each for each in names if each[:1].isupper()]
