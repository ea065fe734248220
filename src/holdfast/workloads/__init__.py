"""Training jobs that come with holdfast. Each is a folder that reads from top to bottom, and uses only the public API."""
