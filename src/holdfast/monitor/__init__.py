"""See a run, from anywhere, also after it died: everything here reads the run folder, and nothing else."""
