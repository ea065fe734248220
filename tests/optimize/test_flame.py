"""The picture of a profile: what is inside of what, at one scale, and nothing that a name says becomes HTML."""

from __future__ import annotations

import re

from holdfast.optimize.flame import picture, tree

ROWS = [
    {"layer": "layers.0.attention", "kind": "Attention", "seconds": 0.06},
    {"layer": "layers.0.norm", "kind": "LayerNorm", "seconds": 0.01},
    {"layer": "layers.1.attention", "kind": "Attention", "seconds": 0.02},
    {"layer": "node_7", "kind": "MatMul", "seconds": 0.01},
]


def test_times_are_put_into_each_other() -> None:
    found = tree(ROWS)
    assert round(found.seconds, 9) == 0.1
    assert round(found.inside["layers"].inside["0"].seconds, 9) == 0.07
    assert list(found.inside["MatMul"].inside) == ["node_7"], "a node without a path stands under its kind"


def test_the_line_above_is_the_share_of_the_longer_one() -> None:
    assert 'class=scale style="width:50.00%"' in picture(ROWS, 0.2)
    assert 'class=scale style="width:100.00%"' in picture(ROWS, 0.1)
    widths = [float(each) for each in re.findall(r'<div style="width:([\d.]+)%">', picture(ROWS, 0.1))]
    assert widths[0] == 90.0 and 10.0 in widths


def test_names_are_text() -> None:
    shown = picture([{"layer": "<script>alert(1)</script>", "kind": '"><b>', "seconds": 1.0}], 1.0)
    assert "<script" not in shown and "<b>" not in shown
    assert picture([], 0.0) == ""
