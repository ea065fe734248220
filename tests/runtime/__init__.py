import pytest

# Asserts in the helpers say as much as those in the tests: which values, and where they differ.
for _name in ("loaders", "local_runs", "recordings", "resuming", "saving", "state_jobs"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")
