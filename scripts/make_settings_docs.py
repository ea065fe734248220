#!/usr/bin/env python3
"""Write docs/settings.md from the settings, and the texts under them, that the program itself uses.

python scripts/make_settings_docs.py             write it
python scripts/make_settings_docs.py --check     exit 1 if it is out of date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from pages import keep

from holdfast.run.settings import Settings, describe, known, sections, variable

HEAD = """\
<!-- Made by scripts/make_settings_docs.py from src/holdfast/run/setting_groups.py: edit there, not here. -->
# Settings

Every setting has a name with a dot, a default and a kind. `holdfast config` shows the values in force here and where
each of them came from; `holdfast config -v` adds the texts below; `holdfast config watchdog.floor` shows one setting.

A value is taken from the first of these places that has one:

1. the command line: `holdfast train my_script.py checkpoint.every=30s`
2. the environment: `HOLDFAST_CHECKPOINT_EVERY=30s`
3. `holdfast.toml` in the current folder
4. `[tool.holdfast]` of `pyproject.toml` in the current folder
5. the user's file, `~/.config/holdfast/config.toml` (or below `XDG_CONFIG_HOME`; on Windows below `APPDATA`)
6. the default

In a file, a section is a table:

```toml
[checkpoint]
every = "30s"
keep = 5

[run]
threads = 8
```

Durations are written `250ms`, `90s`, `5m`, `1h30m`, or as a plain number of seconds. Sizes are written `512MiB` (2^20),
`4GB` (10^9), or as a plain number of bytes. Names that do not exist and values that are not allowed are errors (exit
code 2) that name the place, what is allowed and what was probably meant.

A run writes its settings down in `run.json`. `holdfast resume` uses those, not the files and variables of the moment;
settings given to `resume` itself come on top.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for section, group in sections().items() for line in _section(section, group))])


def _section(section: str, group: type) -> Iterator[str]:
    yield f"## {section}"
    yield ""
    yield inspect.getdoc(group) or ""
    yield ""
    yield "| setting | default | accepts | what it does |"
    yield "|---|---|---|---|"
    for name in group.__dataclass_fields__:  # type: ignore[attr-defined]
        key = f"{section}.{name}"
        yield f"| `{key}` | {Settings().shown(key)} | {known(key).allowed} | {describe(key)} |"
    yield ""
    yield f"As a variable: `{variable(f'{section}.KEY')}`, for example `{variable(key)}`."
    yield ""


if __name__ == "__main__":
    sys.exit(keep("settings.md", render(), sys.argv[1:]))
