"""What everything else stands on: errors, files, locks, processes, channels, text.

It imports nothing else of ours and no torch.
"""
