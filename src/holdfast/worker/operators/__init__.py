"""Operators of a training step, one at a time: recorded on the device, computed again on the CPU, compared.

recorder.py    chooses operators of an ordinary step; look.py notes what goes in and out (slices*.py: parts)
case.py        one operator with its tensors, in memory and as a safetensors file
reference.py   the same operator in fp64 on the CPU
bounds*.py     what rounding explains, from the operator, its precision and its length (families.py, roundings.py)
comparison.py  device against fp64, element by element
checker.py     the process that compares, beside the training; checker_client.py is its other end
confirmation.py  the operator again, with other inputs, in a fresh process, and a script for a stranger
"""
