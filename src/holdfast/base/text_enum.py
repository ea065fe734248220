"""Enums whose members are the words in files, in JSON and on the screen. (`enum.StrEnum` needs Python 3.11.)

class Family(TextEnum):
    DEVICE = "device"

data["family"] == Family.DEVICE         # also where the word was read from a file
f"{Family.DEVICE}"                      # "device"
"""

from __future__ import annotations

from enum import Enum


class TextEnum(str, Enum):
    """A member is its word, wherever it is compared, printed or written."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, form: str) -> str:
        return format(str(self.value), form)
