"""Somebody else's script under supervision: `holdfast run -- python train.py`.

    streams.py       the script's stdin, stdout and stderr, passed on byte for byte
    launching.py     starting it as it would start by itself
    kin.py           what it started, found and ended with it
    hook/            the few lines inside the script: steps, the last exception, stacks
    notes.py         what the hook wrote down, and which fault it is
    activity.py      is it computing, although it says nothing?
    patience.py      how long it may be silent
    frameworks.py    how Lightning, HF Trainer, ultralytics, Accelerate and others go on
    checkpoints.py   the newest checkpoint that is whole
    rungs.py         the ladder by environment, down to the CPU
    supervising.py   the loop; answering.py: what follows when the script ends
    attached.py      the other end of `holdfast.attach`: slots and keeper

A package of its own beside `runtime`: what `runtime` supervises is a worker it wrote itself, forked from a nursery and
asked to stop by a word on the board. Here the worker is anything that can be started. The parts that know nothing of
workers (board, faults, ladder, evidence, journal, accounts, trust, keeper) are those of `runtime`.
No torch here, except in what a script imports itself.
"""
