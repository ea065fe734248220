"""Ordinary PyTorch idioms, each as a plain script and as its port; kit.py runs them with kills and compares."""
