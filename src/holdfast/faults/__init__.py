"""What can go wrong and what follows: kinds, signatures, classification, ladder, blame.

Pure: no torch, no processes.
"""
