"""Attacks, as tests: what somebody else may put before us, and what must not come of it."""
