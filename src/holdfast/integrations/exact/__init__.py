"""`holdfast run --exact`: an unchanged script whose whole state is outside of its process, variables included.

The hook of `holdfast run` starts `engine.py` at the first step of an optimizer. From then on, at the cadence of
worker/cadence.py and at the end of an `optimizer.step()`, everything that the script can reach from there goes into
slots: modules and optimizers as a session keeps them, and beside them

  frames.py     where the script is: the functions that are open, and the `for` loops that are open in each
  capture.py    what their variables hold: numbers, texts, containers, objects, tensors, iterators, generators
  loaders.py    how far a DataLoader is, and the random numbers it began with
  process_generators.py    the random numbers of loader processes that live over epochs
  restore.py    the way back: the same variables of a new process, changed in place
  files.py      the files that the script writes to

A new process runs the script from its first line. Where it comes to the same place for the first time, which is in its
first step as a rule, everything is put back, and it goes on as the process before would have gone on.
"""
