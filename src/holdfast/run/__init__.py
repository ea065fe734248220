"""The run folder: run.json, settings, journal, names, scripts and workloads that can be run. No torch."""
