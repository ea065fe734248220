"""The EEG workload: from the recordings to the leaderboard. README.md beside this file says how."""
