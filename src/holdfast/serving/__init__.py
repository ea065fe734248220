"""`holdfast serve`: a bundle over HTTP on this machine. asyncio and numpy, no web framework.

serve(bundle, token="…", port=8377, say=print)       # until Ctrl-C
"""
