"""What is in this machine? Asked without importing torch and without touching a driver in our own process.

    from holdfast.devices import survey

    inventory = survey.take(folder=Path("runs"))
    inventory.visible                        # ["cuda:0", "cpu"]: what torch would count
    inventory.device("cuda:0").arch          # "gfx1010": the truth
    inventory.device("cuda:0").claimed_arch  # "gfx1030": what the environment makes of it
    json.dumps(inventory.to_json())

| file | what it looks at |
|---|---|
| collect.py | puts it all together |
| nvidia.py amd.py intel.py apple.py windows.py | one vendor or system each |
| labels.py | what torch would call each card, and why it would not count one |
| cpu.py disk.py build.py host.py | the CPU, the disk of the runs, the installed torch, the system |
| tools.py | vendors' tools, in children with a deadline |
"""

from __future__ import annotations

from holdfast.devices.survey.collect import take
from holdfast.devices.survey.host import Host
from holdfast.devices.survey.records import Cpu, Device, Disk, Inventory, System, TorchBuild
from holdfast.devices.survey.tools import Answer, Run, run_tool, tool_name

__all__ = [
    "Answer",
    "Cpu",
    "Device",
    "Disk",
    "Host",
    "Inventory",
    "Run",
    "System",
    "TorchBuild",
    "run_tool",
    "take",
    "tool_name",
]
