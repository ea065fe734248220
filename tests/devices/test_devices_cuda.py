"""A real accelerator: is it the card we say it is, and does its probe pass?"""

from __future__ import annotations

import pytest
import torch

from holdfast.devices.identity import identify
from holdfast.devices.probe_process import run_probe

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator that torch can use"),
]


def test_every_card_is_the_one_torch_means() -> None:
    for number in range(torch.cuda.device_count()):
        here = identify(f"cuda:{number}")
        if here.pci is None:
            continue  # cards that no file tells apart
        there = torch.cuda.get_device_properties(number)
        if not hasattr(there, "pci_bus_id"):
            pytest.skip("this torch does not say where a card is")
        place = f"{there.pci_domain_id:04x}:{there.pci_bus_id:02x}:{there.pci_device_id:02x}"
        assert here.pci.partition(".")[0] == place
        assert here.driver


def test_a_good_card_passes() -> None:
    result = run_probe("cuda:0", 120.0)
    assert (result.ok, result.why) == (True, "")
    assert [check["ok"] for check in result.checks] == [True, True, True]
