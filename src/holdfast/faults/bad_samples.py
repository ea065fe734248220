"""What is held against samples: who is at fault, which samples, what they did, and who else was tried. No torch here.

    charge = Charge(Blame.DATA, ({"index": 4711, "source": "sub-01_eeg.set"},), "raised ValueError: …", 31, 31)
    charge.sentence()          # "the data are at fault: sample 4711 (sub-01_eeg.set) raised ValueError: …"
    charge.cause()             # "31 of 31 other samples can be read"
    charge_of(error)           # the charge that travels with an exception, as JSON; None if there is none

An error out of a dataset stays what it is, so that a script can catch it by its type; the charge is an attribute of it.
A sample that ends or hangs the process that reads it raises nothing: `BadSamples` is raised in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import ScriptFailed
from holdfast.faults.blame import Blame, Verdict

MOST_NAMED = 3
_ATTRIBUTE = "holdfast_charge"


@dataclass(frozen=True, slots=True)
class Charge:
    """Reading told apart: bad samples, or code that fails for any of them."""

    blame: Blame
    samples: tuple[Mapping[str, Any], ...]
    """`{"index": …, "source": …}` for each at fault."""
    did: str
    """Goes on after the samples: "raised ValueError: …", "killed the process that reads it (SIGSEGV)"."""
    others_tried: int = 0
    others_ok: int = 0
    how_to_skip: str | None = None
    """A hint: what allows to go on without such samples."""
    because: str | None = None
    """The cause, where it is another one than what others were found to do."""

    def sentence(self) -> str:
        if self.blame is Blame.DATA:
            return f"the data are at fault: {named(self.samples)} {self.did}"
        if self.blame is Blame.CODE:
            return f"the script is at fault: each sample that was tried {self.did}"
        return f"{named(self.samples)} {self.did}"

    def cause(self) -> str:
        if self.because is not None:
            return self.because
        if self.blame is Blame.CODE:
            return f"not one of {_samples(self.others_tried + len(self.samples))} can be read"
        if self.blame is Blame.UNKNOWN:
            return "whose fault it is is not known: " + (
                "read again, it did not do that" if self.others_tried else "there is no other sample to compare with"
            )
        if not self.others_tried:
            return "others do not do that"
        return f"{self.others_ok} of {self.others_tried} other samples can be read"

    def hints(self) -> list[str]:
        if self.blame is Blame.CODE or not self.samples:
            return []
        first = self.samples[0]
        hints = [f"read it alone: dataset[{first['index']}]"]
        if first.get("source"):
            hints = [f"look at {first['source']}: is it whole, can another program read it?", *hints]
        return [self.how_to_skip, *hints] if self.how_to_skip else hints

    def to_json(self) -> dict[str, Any]:
        """The fields of a verdict, and what only reading can tell."""
        verdict = Verdict(self.blame, self.did, repeatable=self.blame is not Blame.UNKNOWN, samples=())
        return {
            **verdict.to_json(),
            "samples": [dict(sample) for sample in self.samples],
            "error": self.did.removeprefix("raised "),
            "others_tried": self.others_tried,
            "others_ok": self.others_ok,
            "sentence": self.sentence(),
            "cause": self.cause(),
            "hints": self.hints(),
        }


class BadSamples(ScriptFailed):
    """Samples that cannot be read, or are left out of a score that must not miss any; `charge` names them."""

    def __init__(self, charge: Charge, message: str | None = None, *, hints: Sequence[str] | None = None) -> None:
        super().__init__(
            message or charge.sentence(), cause=charge.cause(), hints=charge.hints() if hints is None else hints
        )
        self.charge = charge
        self.blame = charge.to_json()
        attach(self, charge)


def attach(error: BaseException, charge: Charge) -> None:
    """Let the charge travel with the error."""
    try:
        setattr(error, _ATTRIBUTE, charge.to_json())
    except (AttributeError, TypeError):  # a class that takes no attributes: then its words are all there is
        return


def charge_of(error: BaseException) -> dict[str, Any] | None:
    """The charge of this error, or of the one it was raised from."""
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return None
        found = getattr(link, _ATTRIBUTE, None)
        if isinstance(found, dict):
            return found
        link = link.__cause__
    return None


def named(samples: Sequence[Mapping[str, Any]]) -> str:
    """ "sample 4711 (sub-01_eeg.set)", "samples 3 (a.png), 4 (b.png), 9 and 12 more"."""
    shown = [f"{each['index']}" + (f" ({short(each['source'])})" if each.get("source") else "") for each in samples]
    if len(shown) > MOST_NAMED:
        return f"samples {', '.join(shown[:MOST_NAMED])} and {len(shown) - MOST_NAMED} more"
    return f"sample{'s' if len(shown) != 1 else ''} {', '.join(shown)}"


def short(source: str, most: int = 60) -> str:
    """The end of a long path, which tells more than its beginning."""
    if len(source) <= most:
        return source
    name = source.replace("\\", "/").rpartition("/")[2]
    return name if 0 < len(name) <= most else "…" + source[1 - most :]


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
