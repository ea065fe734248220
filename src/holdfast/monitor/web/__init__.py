"""The monitor as a local page: `holdfast watch --web`. Needs the extra `monitor` (starlette, uvicorn).

serve(Path("runs"), [], say=print)      # prints its address, with the token in it, and serves until Ctrl-C
"""

from __future__ import annotations

from holdfast.monitor.web.server import serve as serve
