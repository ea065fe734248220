"""The loader, its processes, the order of samples, quarantine. Worker side."""
