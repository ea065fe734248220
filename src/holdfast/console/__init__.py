"""How commands speak: streams, colour, progress, parsers, errors. Commands of workloads use it too. No torch."""
