"""The ecosystem workload: predators and prey that learn, in a simulated world. See README.md in this folder."""
