"""The process that starts, watches and replaces workers: loop, watchdog, recovery, saves, limits. No torch."""
