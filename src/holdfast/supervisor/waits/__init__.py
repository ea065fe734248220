"""What a silent process waits for: nothing for ever, or something that comes.

finding.py      the grades, and the words
judgement.py      a process and its family: through threads, children, pipes and sockets to whoever is waited for
deadlock.py     the proof that none of the threads can ever move
calls.py        what one system call waits for
descriptors.py  what is at the other end of a pipe, a socket, a lock
threads.py      the threads of a process with the calls they are in
syscalls.py     the numbers of those calls
"""

from holdfast.supervisor.waits.deadlock import Deadlock
from holdfast.supervisor.waits.finding import COMPUTES, UNKNOWN, UNSEEN, Finding, Grade
from holdfast.supervisor.waits.judgement import Waits

__all__ = ["COMPUTES", "UNKNOWN", "UNSEEN", "Deadlock", "Finding", "Grade", "Waits"]
