"""Probes that are a file each: `PROBES` is what the catalogue shows, and the functions it names stand below it.

    PROBES = [Probe("index out of bounds", "notice", "index", ("",))]
    def notice(bench, spec): ...        # imports torch inside: the catalogue is read where there is no torch

A new file here is a new probe. One whose failure gets a sentence of its own needs a row in devices/diagnosis.py, too.
One from outside is the same file in a folder of HOLDFAST_ADD.
"""
