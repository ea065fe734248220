"""What can be wrong with a recording or one of its windows: a short reason to count by, and the words.

    raise DataFault("truncated", "the header promises 300 records, the file holds 211.4")

Reasons are the same words in reports, JSON and tests; `REASONS` says what each of them means.
"""

from __future__ import annotations

REASONS = {
    # a whole recording
    "unreadable": "the file is not what its name says, or it is damaged",
    "truncated": "the file ends before its header says",
    "too large": "it unpacks to more than a recording of its size can hold, or than there is memory for",
    "missing": "a file that is named is not there",
    "unsupported": "a format that cannot be read here",
    "reader died": "the process that read the file was ended by it",
    "no events": "there is no events file, or it has no rows",
    "broken table": "a table beside it is damaged, or not separated by tabs",
    "renamed channels": "its channels.tsv calls channels otherwise than the recording itself",
    "no stimuli": "none of its events is a stimulus",
    "no label": "what is to be learned is not known of this subject",
    "channel count": "it has other channels than the rest of the set",
    "missing channel": "a channel that was asked for does not exist",
    "sampling rate": "it cannot be brought to the rate of the cache",
    "too short": "it is shorter than one window",
    "excluded": "the subject is on the list of those to leave out",
    # a window
    "onset not a number": "the onset of its event is NaN or no number",
    "before the start": "it would begin before the recording does",
    "past the end": "it would end after the recording does",
    "no stimulus": "the trial has no stimulus",
    "no response": "nothing was pressed in this trial",
    "not finite": "its signal has NaN or infinite samples",
    "across a boundary": "the recording was cut inside of it",
}


class DataFault(Exception):
    """This recording or window cannot be used; the rest of the set can."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
