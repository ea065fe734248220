"""Fewer tokens: the same answers where neighbours say the same, refused where they do not, left alone where unsure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.optimize import engines
from holdfast.optimize.candidates import Candidate
from holdfast.optimize.findings import findings
from holdfast.optimize.pipeline import Options, _Search
from holdfast.optimize.processor import Machine
from holdfast.optimize.rewrite import factors, merged
from tests.optimize import nets


def test_slow_waves_need_fewer_tokens_and_noise_needs_all() -> None:
    net, x = nets.tokens().eval(), torch.from_numpy(nets.smooth(8))
    noise = torch.randn(8, 4, 256)
    assert factors(net, [x[:1]]) == [4, 2], "64 tokens are left at least"
    with torch.inference_mode():
        wanted, other = net(x), net(noise)
        fewer = merged(nets.tokens(), [x[:1]], 4).eval()
        assert fewer(x).shape == wanted.shape
        slow, fast = ((fewer(given) - told).abs().max() for given, told in ((x, wanted), (noise, other)))
    assert slow < 0.02 * wanted.std() and fast > 10 * slow


def test_what_stands_between_layers_or_masks_them_is_left_alone() -> None:
    class Masked(nets.Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(x.shape[2], x.shape[2])
            found: torch.Tensor = self.last(self.layers(self.enter(x.transpose(1, 2)), mask).mean(dim=1))
            return found

    class Twice(nets.Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.layers(self.layers(self.enter(x.transpose(1, 2))))
            found: torch.Tensor = self.last(tokens.mean(dim=1))
            return found

    class Between(nets.Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.enter(x.transpose(1, 2))
            for layer in self.layers.layers:
                tokens = layer(tokens).flip(1)
            found: torch.Tensor = self.last(tokens.mean(dim=1))
            return found

    x = torch.from_numpy(nets.smooth(1))
    for kind in (Masked, Twice, Between):
        assert factors(kind(), [x]) == [], kind.__name__
    assert factors(nets.small(), [torch.ones(1, 6)]) == []
    with pytest.raises(ValueError, match="merged by 4"):
        merged(nets.small(), [torch.ones(1, 6)], 4)


@pytest.mark.all
def test_what_is_built_has_fewer_tokens_and_takes_batches(tmp_path: Path) -> None:
    x = nets.smooth(4)
    np.savez(tmp_path / "inputs.npz", x=x)
    about = {**Candidate("torchscript", "fp32", 1, merge=4).to_json(), "file": "model.ts", "outputs": [{}]}
    about["spec"] = {"kind": "module", "factory": f"{nets.__file__}:tokens"}
    engines.build(tmp_path, about, tmp_path / "built")
    with torch.inference_mode():
        wanted = nets.tokens().eval()(torch.from_numpy(x)).numpy()
    found = engines.load(tmp_path / "built", about).run([x])[0]
    assert 0 < np.abs(found - wanted).max() < 0.02 * wanted.std()


@pytest.mark.parametrize(("harmless", "tried"), [(10, [10, 10, 10]), (4, [10, 8, 5, 4, 4, 4]), (1, [10, 8, 5, 4, 2])])
def test_the_largest_harmless_merging_is_tried_with_the_two_best_engines(
    tmp_path: Path, harmless: int, tried: list[int]
) -> None:
    class Search(_Search):
        def _try(self, each: Candidate, *, judged: bool = True) -> dict[str, Any]:
            state = "ok" if each.merge <= harmless else "refused"
            self.rows.append({**each.to_json(), "state": state, "ratio": 2.0 * each.merge})
            return self.rows[-1]

    search = Search({}, tmp_path, Machine(frozenset(), 2), Options(), lambda text: None)
    for engine, ratio in (("aot", 1.1), ("openvino", 1.4), ("onnxruntime", 1.3)):
        search.rows.append({**Candidate(engine, "fp32", 2).to_json(), "state": "ok", "ratio": ratio})
    search.factors = [10, 8, 5, 4, 2]
    search._fewer_tokens()
    new = search.rows[3:]
    assert [row["merge"] for row in new] == tried
    assert [row["engine"] for row in new if row["engine"] != "eager"] == ["openvino", "onnxruntime"] * (harmless > 1)
    best = search._best()
    assert best is not None and best["merge"] == (harmless if harmless > 1 else 1)
    best["chosen"] = True
    assert any("neighbouring tokens are one" in told for told in findings(search.rows, {})) == (harmless > 1)
