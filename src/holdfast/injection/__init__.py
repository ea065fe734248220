"""Faults on purpose, as settings and variables ask for them: chaos, pretended devices. Worker side; plans without torch."""
