"""The fault tests' way to run a job: workers from a nursery that is warm already."""

from tests.real_faults.conftest import drive, nursery, reference

__all__ = ["drive", "nursery", "reference"]
