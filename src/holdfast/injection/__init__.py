"""Faults on purpose, as settings and variables ask for them: chaos, pretended devices.

They happen in the worker; their plans are read without torch.
"""
