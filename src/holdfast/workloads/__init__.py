"""Training jobs that come with holdfast: each a folder to read from top to bottom, using only the public API."""
