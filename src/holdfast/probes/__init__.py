"""Probes: what the doctor makes a device do, each in a process of its own.

    probe_catalog.py     what there is, by name; no torch
    child.py       the process: waits with torch imported, forks once per probe, and tells what it is about to do
    bench.py       the device as probes see it: precision, layout, memory
    layers.py      the small networks
    compare.py     forward, backward and training, against float64 on the CPU
    memory.py      allocation and transfers
    own.py         one step of the user's own script
    conduct.py     the same twice, random numbers, load, the first step
    more/          probes that are a file each, row and function in one

`devices/battery.py` runs them. Everything here but the catalogue and more/ imports torch and belongs into a child.
"""
