"""Probes: what the doctor makes a device do, each in a process of its own.

    child.py       the process: waits with torch imported, forks once per probe, and tells what it is about to do
    bench.py       the device as probes see it: precision, layout, memory
    layers.py      the small networks
    compare.py     forward, backward and training, against float64 on the CPU
    memory.py      allocation and transfers
    script_step.py one step of the user's own script
    behaviour.py   the same twice, random numbers, load, the first step
    short_training.py   a training of a few seconds, for a device that comes back in a run
    wrong_kernels.py    kernels that are wrong on purpose, and a bench for tests of probes
    more/          probes that are a file each, row and function in one

`devices/probe_catalog.py` says by name what there is, `devices/battery.py` runs it. Everything here but more/
imports torch and belongs into a child.
"""
