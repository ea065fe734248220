"""Serve the page on this machine until Ctrl-C.

    serve(Path("runs"), [Path("runs/windows-…-calm-heron")], say=output.note)

Bound to 127.0.0.1 unless another address is asked for. If the port is in use the next free one is taken, and said.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import uvicorn

from holdfast.base.errors import UserError
from holdfast.monitor.places import Places
from holdfast.monitor.web.app import build
from holdfast.monitor.web.guard import LOCAL, Guard
from holdfast.monitor.web.hub import Hub
from holdfast.monitor.web.keys import CODE_S, Kept, doorway, fresh_token
from holdfast.monitor.web.limits import BURST, Clients, Limits
from holdfast.run.folder import name_of

PORT = 7878
_TRIES = 40


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], hub: Hub, clients: Clients) -> None:
        super().__init__(config)
        self._ready, self._hub, self._clients = ready, hub, clients

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(128)  # so many may wait in the system's own queue, which costs no descriptors
        self._clients.look_after(asyncio.get_running_loop())
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._clients.close()
        self._hub.closing = True  # open streams end by themselves
        await super().shutdown(sockets)


def serve(
    root: Path,
    named: list[Path],
    *,
    host: str | None = None,
    port: int | None = None,
    browser: bool = False,
    say: Callable[[str], None] = print,
    ready: Callable[[str], None] | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the runs below `root`, and those that were named, until the process is asked to end."""
    host = host or "127.0.0.1"
    listening, port = _listen(host, PORT if port is None else port, say)
    hub = Hub(Places(root, named))
    token = fresh_token()
    guard = Guard(token, host=host, port=port)
    clients = Clients(limits or Limits.here())
    kept = Kept(token, port)
    start = f"/r/{quote(name_of(named[0]))}" if len(named) == 1 else "/"
    if len(named) > 1:
        start = f"/compare?runs={','.join(quote(path.name) for path in named)}"
    place = f"http://{_shown(host)}:{port}{start}{'&' if '?' in start else '?'}"
    address = f"{place}token={token}"

    def told() -> None:
        say(f"watch  {address}")
        if host not in (*LOCAL, "::1"):
            say("anybody with this address can see these runs, and the connection is not encrypted")
        say("Ctrl-C ends the page; the runs go on")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # into a pipe too: somebody waits for the address
        if browser:
            _open(kept, f"{place}code={guard.code()}")
        if ready is not None:
            ready(address)

    config = uvicorn.Config(
        guard.around(build(hub)),
        http=clients.protocol(),
        backlog=BURST,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
        ws="none",
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            Server(config, told, hub, clients).run(sockets=[listening])
    finally:
        kept.remove()


def _open(kept: Kept, address: str) -> None:
    """A browser gets the name of a file that its user alone can read, and no secret: others see its arguments."""
    file = doorway(address)
    if file is None:
        return  # the address was printed
    kept.add(file)
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
    gone = threading.Timer(CODE_S, kept.drop, [file])
    gone.daemon = True
    gone.start()


def _listen(host: str, first: int, say: Callable[[str], None]) -> tuple[socket.socket, int]:
    """A socket at the port, or at the next free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [*range(first, min(first + _TRIES, 65536)), 0] if first else [0]:
        # asyncio turns Nagle's delay off only where the protocol is named.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except (PermissionError, socket.gaierror, OverflowError) as error:
            listening.close()
            cause = str(getattr(error, "strerror", None) or error)
            raise UserError(f"cannot listen at {host}:{port}", cause=cause, hints=["choose another `--port`"]) from None
        except OSError as error:
            listening.close()
            if port == 0 or not _in_use(error):
                raise UserError(f"cannot listen at {host}:{port}", cause=str(error.strerror or error)) from None
            continue
        chosen = int(listening.getsockname()[1])
        if first and chosen != first:
            say(f"port {first} is in use; this page is at {chosen}")
        return listening, chosen
    raise UserError(f"no port is free at {host}")


def _in_use(error: OSError) -> bool:
    import errno

    return error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEACCES", -1), 10048)


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
