"""What faults on purpose see of a session. The session is a floor above: it is armed, it is not imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.base.board import Phase


class Trained(Protocol):
    """A session that trains on a device."""

    _phase_hooks: list[Callable[[Phase], None]]

    @property
    def _named(self) -> dict[str, Any]: ...

    @property
    def device(self) -> Any: ...

    @property
    def step_count(self) -> int: ...

    @property
    def _pieces(self) -> int: ...
