"""A run in a terminal: pictures of text, and the Textual app around them.

scene.py      what is known of a run now, for a picture
notes.py      what happened, a line each
curves.py     curves, bars and lanes as characters
small.py      the picture for 80x24 and for `holdfast watch -1`; shrinks to 40x10
large.py      the picture with frames, curves and lanes
pages.py      events, log, one curve, runs, help: a page each
app.py        keys, time, the terminal itself; the only module here that imports Textual
"""
