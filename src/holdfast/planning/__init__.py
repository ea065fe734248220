"""Which way to train? Measured, not guessed."""
