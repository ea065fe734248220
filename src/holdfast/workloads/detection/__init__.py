"""The detection workload: train a detector on whatever boxes you have. The README beside this file shows how."""
