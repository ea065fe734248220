"""`python -m holdfast` is the `holdfast` command."""

from __future__ import annotations

import sys

from holdfast.base.interpreter import forget_current_folder

if __name__ == "__main__":
    forget_current_folder()

from holdfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
