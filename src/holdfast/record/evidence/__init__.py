"""What is kept of a fault, in faults/NN/: one sentence, stacks, last words, what the kernel said, where it happened.

    stacks = ask_for_stacks(pid, path, native=True)            # while a worker is silent, before it is killed
    folder = collect(run, fault, move, beat, ..., gathering=gathering)          # after a death: at once
    gathering.poll()                                           # at every tick: the slow rest, as it comes
    add_verdict(folder, verdict)                               # when blame was proven

    stacks.py       last words, stacks                 folder.py      the folder and its README
    messages.py     what kernel messages mean          gathering.py   what comes later
    kernel_log.py   where they are read                reader.py      a command that may hang
    drm.py          wedged devices                     counters.py    what the system counts
    environment.py  versions, hardware, variables

No torch here, and no call into a driver: the supervisor uses all of this.
"""

from holdfast.record.evidence.folder import add_verdict as add_verdict
from holdfast.record.evidence.folder import collect as collect
from holdfast.record.evidence.gathering import Gathering as Gathering
from holdfast.record.evidence.gathering import gather as gather
from holdfast.record.evidence.stacks import ask_for_stacks as ask_for_stacks
from holdfast.record.evidence.stacks import last_words as last_words
from holdfast.record.evidence.stacks import py_spy as py_spy
