"""What `holdfast run` says beside the script it runs: a few lines on stderr that begin with `holdfast`.

    holdfast  ! pid 28573 crashed with SIGSEGV after 6m 12s at step 3 862        F002
    holdfast  ↺ restarting (1) from checkpoints/last.ckpt by Lightning; 12 steps to repeat

A line of ours never cuts one of the script's in two. Where stderr is a file or a pipe, nothing is said until something
has happened, so an undisturbed script leaves the same bytes as without us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.base.errors import ScriptFailed, Stopped
from holdfast.base.human import size
from holdfast.cli.faces import QuietFace
from holdfast.console.output import Output, counted, duration, print_error
from holdfast.run.events import Event
from holdfast.run.folder import RunFolder
from holdfast.run.reference import shown
from holdfast.run.states import RunState
from holdfast.supervisor.run_context import Outcome

if TYPE_CHECKING:
    from holdfast.supervisor.scripts.script_supervisor import ScriptSupervisor

NAME = "holdfast  "


class RunFace(QuietFace):
    """Events as single lines between the script's own."""

    def __init__(self, output: Output, folder: RunFolder) -> None:
        self.how = output
        self.screen = output.err
        self.folder = folder
        self.supervisor: ScriptSupervisor | None = None
        self._generations = 0
        self._exact = False
        self._happened = False

    def event(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None and not self.how.quiet:
            handler(event.data)

    def _on_worker(self, data: dict[str, Any]) -> None:
        self._generations += 1
        if self._generations == 1 and self.screen.tty:
            self._say("•", f"watching pid {data.get('pid')} · {data.get('device')} · {shown(self.folder.path)}", "dim")

    def _on_fault(self, data: dict[str, Any]) -> None:
        self._happened = True
        self._say("!", f"{data.get('sentence')}  {data.get('code')}", "yellow")

    def _on_moved(self, data: dict[str, Any]) -> None:
        self._say("⇒", f"{data.get('before')} → {data.get('after')}", "cyan")

    def _on_exact(self, data: dict[str, Any]) -> None:
        """What the rehearsal has shown. A file gets a line only if the run is not exact."""
        if not data.get("exact"):
            self._happened = True
            self._say("!", str(data.get("text")), "yellow")
        elif self.screen.tty:
            self._say("✓", str(data.get("text")), "green")

    def _on_restart(self, data: dict[str, Any]) -> None:
        if data.get("reason") == "rehearsal":
            return
        self._say("↺", f"restarting ({data.get('tries')}) {data.get('text')}", "cyan")
        known = self.supervisor.notes if self.supervisor is not None else None
        could = known is not None and known.torch_seen and self.supervisor and not self.supervisor.attached.exact
        if data.get("tries") == 1 and could:
            self._say("•", "`holdfast.attach(model, optimizer, loader)` makes restarts lossless", "dim")

    def _on_recovered(self, data: dict[str, Any]) -> None:
        self._say("✓", f"back where it was after {duration(data.get('seconds'))}", "green")

    def _on_note(self, data: dict[str, Any]) -> None:
        self._happened = True
        self._say("•", str(data.get("text")), "dim")

    _on_trust = _on_abandoned = _on_silent = _on_note

    def _say(self, sign: str, text: str, style: str) -> None:
        streams = self.supervisor.streams if self.supervisor is not None else None
        raw = streams is not None and streams.raw
        cut = streams is not None and streams.would_cut(2)
        line = self.screen.style(f"{NAME}{sign} {text}", style)
        end = "\r\n" if raw else "\n"
        self.screen.write(line, before=end if cut else "", end=end)

    def conclude(self, outcome: Outcome) -> None:
        """How it ended, where that is not plain from what the script said itself."""
        output, receipt = self.how, outcome.receipt
        if output.quiet:
            return
        if outcome.error is not None and not isinstance(outcome.error, (ScriptFailed, Stopped)):
            print_error(outcome.error, output.err)
        elif outcome.state == RunState.FINISHED and (self._happened or output.err.tty):
            faults = sum(receipt.get("faults", {}).values())
            steps = counted(receipt.get("steps") or 0, "step")
            words = [f"finished {steps}" if receipt.get("steps") else "finished"]
            if faults:
                words.append(f"{counted(faults, 'fault')} survived")
                work, printed = receipt.get("work_repeated_s"), receipt.get("output_repeated_bytes")
                if work is not None:
                    told = f" ({size(printed)} of output)" if printed else ""
                    about = "up to " if receipt.get("work_repeated_at_most") else ""
                    words.append(f"{about}{duration(work)} of work repeated{told}")
                elif receipt.get("steps"):
                    words.append(f"{counted(receipt.get('steps_repeated') or 0, 'step')} repeated")
                words.append(f"{duration(receipt.get('seconds_lost'))} lost")
            self.supervisor = None
            self._say("✓", " · ".join(words), "green")
