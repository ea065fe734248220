"""A data.yaml: a few keys, read so that nothing in it can fill the memory or take forever.

told, line_of = read(path)        # UserError, with words, for anything that is no description of a data set
line_of("train")                  # the line of a key

Aliases are refused: some hundred bytes of them unfold to gigabytes, and no description of a data set needs one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.errors import UserError
from holdfast.workloads.detection.labels import Unreadable, read_text

MOST_CHARACTERS = 1 << 20


def read(path: Path) -> tuple[Any, Callable[[str], int]]:
    """What stands in it, and where each key does (0 if that is not known)."""
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Plain values only."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise yaml.YAMLError(f"line {event.start_mark.line + 1}: it has an alias (*{event.anchor})")
            return super().compose_node(parent, index)

    try:
        text = read_text(path)
        if len(text) > MOST_CHARACTERS:
            raise Unreadable(f"larger than {MOST_CHARACTERS >> 20} MB")
        told = yaml.load(text, Loader=Plain)
    except (Unreadable, yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        cause = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read", cause=cause[:300]) from None

    def line_of(key: str) -> int:
        found = re.search(rf"^\s*['\"]?{re.escape(key)}['\"]?\s*:", text, re.MULTILINE)
        return text.count("\n", 0, found.end()) + 1 if found else 0

    return told, line_of
