"""What is wrong with a data set, each thing by file and line, and what is done about it.

    found = Problems()
    found.add("labels/train/07.txt", 3, "class_range", "class 9, but there are 4")
    found.lines()                 # as text, the worst kinds first
    found.counts                  # {"class_range": 1}

A label that cannot be used never makes background of an object: its place is masked where it is known, and otherwise
the image is left out. An image that cannot be read is left out as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = {
    "unreadable": ("images that cannot be read", "left out"),
    "truncated": ("images that end too early", "left out"),
    "leads_out": ("files that lead out of the data set", "left out"),
    "columns": ("labels with the wrong number of columns", "image left out"),
    "not_a_number": ("labels that hold no finite number", "image left out"),
    "class_range": ("labels with a class that does not exist", "masked"),
    "crowd": ("regions of a crowd", "masked"),
    "no_area": ("boxes without any area", "image left out"),
    "outside": ("boxes outside of their image", "image left out"),
    "clipped": ("boxes that reach over the edge", "clipped"),
    "twice": ("labels given twice", "once"),
    "label_without_image": ("labels without an image", "not used"),
    "image_without_label": ("images without a label file", "taken as empty"),
    "unlabelled": ("images without a label file, where empty images have an empty one", "left out"),
    "in_both": ("images of the validation set that are in the training set as well", "left out of validation"),
    "unreadable_label": ("label files that cannot be read", "image left out"),
}
"""Every kind: what it is in words, and what is done."""
MOST = 200_000
"""Problems kept one by one; the counts go on."""


class Problem(NamedTuple):
    """One thing that is wrong."""

    file: str
    line: int
    """Counted from 1; 0 if it is about the whole file."""
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass
class Problems:
    """All that was found."""

    found: list[Problem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, file: str, line: int, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if len(self.found) < MOST:
            self.found.append(Problem(file, line, kind, text))

    def __len__(self) -> int:
        return self.counts.total()

    def summary(self) -> list[str]:
        """A line for each kind: how many, and what is done about them."""
        return [f"{self.counts[kind]:,} {what}: {done}" for kind, (what, done) in KINDS.items() if self.counts[kind]]

    def lines(self, most: int | None = None) -> list[str]:
        """Each problem in a line, in the order of the kinds."""
        order = {kind: number for number, kind in enumerate(KINDS)}
        listed = sorted(self.found, key=lambda each: order.get(each.kind, 99))
        return [str(each) for each in listed[:most]]

    def to_json(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "problems": [each._asdict() for each in self.found]}

    @classmethod
    def from_json(cls, data: Any) -> Problems:
        made = cls()
        for each in data["problems"]:
            made.found.append(Problem(str(each["file"]), int(each["line"]), str(each["kind"]), str(each["text"])))
        made.counts.update({str(kind): int(count) for kind, count in data["counts"].items()})
        return made
