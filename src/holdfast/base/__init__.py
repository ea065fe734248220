"""What everything else stands on: errors, files, locks, processes, channels, units, text. Imports nothing of ours, no torch."""
