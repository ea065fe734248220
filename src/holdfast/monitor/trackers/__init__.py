"""Experiment trackers: MLflow, Weights & Biases, Trackio and TensorBoard get a run's numbers, events and files.

    rows.py        the journal of a run as numbered rows: every number once, what is wrong marked
    delivery.py    the process of one tracker: it sends rows and remembers in the run folder how far it is
    host.py        the process that starts one delivery for each tracker, and starts it again if it dies
    *_tracker.py   how a row, an event and a file look in each tracker

The training never waits for a tracker: these processes read the run folder, and nothing waits for them.
"""
