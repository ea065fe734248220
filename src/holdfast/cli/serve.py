"""`holdfast serve`: a bundle over HTTP, on this machine only, for those who have the token.

holdfast serve bundle                       prints the address and a command to try it with
holdfast serve bundle --port 9000 --batch 8
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from holdfast.base import compile_cache
from holdfast.base.errors import ExitCode, UserError
from holdfast.console.output import Output, add_flags
from holdfast.console.usage import Parser, UsageError

TOKEN = "HOLDFAST_SERVE_TOKEN"


def add_parser(subparsers: Any) -> Parser:
    """Add the command to the command line."""
    parser: Parser = subparsers.add_parser(
        "serve",
        description="""\
Serve a bundle over HTTP.

examples:
  holdfast serve bundle                        at 127.0.0.1:8377
  holdfast serve bundle --port 9000 --batch 8  smaller batches: shorter waits, fewer answers per second
  holdfast serve bundle --readers 4            for large inputs on many cores: four processes read requests
  HOLDFAST_SERVE_TOKEN=… holdfast serve bundle  use your own token of at least 16 characters

  curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/x-npy" \\
       --data-binary @input.npy http://127.0.0.1:8377/predict > answers.npy

It answers waiting requests together. It checks every file of the bundle before it starts, and the size, shape, type
and numbers of every request. Several inputs: send their .npy files one after the other, an .npz as
application/x-npz, or JSON.
""",
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="a folder that `holdfast optimize` wrote")
    parser.add_argument("--port", type=int, default=8377, help="port to listen on (default: 8377; 0 for any free port)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--batch", type=int, default=16, help="most inputs to answer together (default: 16)")
    parser.add_argument(
        "--max-body", default="64MiB", metavar="SIZE", help="largest request to accept (default: 64MiB)"
    )
    parser.add_argument(
        "--readers", type=int, metavar="N",
        help="number of processes that read requests (default: 0; for inputs of 128 KiB or more 4 on 16 cores, 2 on 8)",
    )  # fmt: skip
    add_flags(parser, json=False)
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    import secrets

    from holdfast.base.units import parse_bytes
    from holdfast.optimize.bundle import open_bundle
    from holdfast.serving.app import _connections, serve
    from holdfast.serving.http import Limits

    output = Output.from_args(args)
    compile_cache.adopt()
    try:
        body = parse_bytes(args.max_body)
    except ValueError as error:
        raise UsageError(f"--max-body: {error}", command="serve") from None
    if args.batch < 1 or not 0 <= args.port < 65536 or body < 1:
        raise UsageError("--batch and --max-body are above 0, --port is below 65536", command="serve")
    if args.readers is not None and not 0 <= args.readers <= 64:
        raise UsageError("--readers is between 0 and 64", command="serve")
    token = os.environ.get(TOKEN, "")
    if token and (len(token) < 16 or not token.isascii() or any(each.isspace() for each in token)):
        raise UserError(
            f"{TOKEN} is not a valid token",
            cause="a token has at least 16 characters: letters, digits, dashes and underscores",
        )
    bundle = open_bundle(Path(args.bundle))
    if not token:
        token = secrets.token_urlsafe(32)
        output.print(f"token {token}")
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        output.note("other machines can reach this address, and the connection is not encrypted")
    limits = Limits(body=body, pending=4 * body, connections=_connections())
    serve(
        bundle, token=token, host=args.host, port=args.port, most=args.batch, limits=limits, readers=args.readers,
        say=output.print,
    )  # fmt: skip
    return ExitCode.OK
