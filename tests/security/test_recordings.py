"""Recordings that somebody else made: few bytes do not fill the memory, a pipe is not waited for, nothing leads out."""

from __future__ import annotations

import importlib.util
import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

MISSING = [name for name in ("scipy", "mne", "h5py", "pymatreader") if importlib.util.find_spec(name) is None]
if MISSING:
    pytest.skip(f"the extra `eeg` is missing: {', '.join(MISSING)}", allow_module_level=True)

import numpy as np  # noqa: E402

from holdfast.base import data_files  # noqa: E402
from holdfast.base.errors import UserError  # noqa: E402
from holdfast.workloads.eeg import eeglab, matlab, reading  # noqa: E402
from holdfast.workloads.eeg.faults import REASONS, DataFault  # noqa: E402
from tests.security.children import peak_of  # noqa: E402

GIGABYTE = 1 << 30


def sound(path: Path, seconds: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    signals = np.random.default_rng(0).standard_normal((4, 100 * seconds)).astype(np.float32) * 1e-5
    eeglab.write(path, signals, rate=100, channels=["E1", "E2", "E3", "Cz"])
    return path


def bomb(path: Path, unpacked: int = 3 * GIGABYTE) -> Path:
    """A .set file whose one variable is `unpacked` bytes of zeros, in about a thousandth of that."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def element(kind: int, data: bytes) -> bytes:
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    count = unpacked // 8
    inner = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<ii", 1, count)) + element(1, b"data")
    inner += struct.pack("<II", 9, count * 8)
    machine = zlib.compressobj(1)
    whole = machine.compress(struct.pack("<II", 14, len(inner) + count * 8) + inner) + machine.flush(zlib.Z_FULL_FLUSH)
    block = machine.compress(bytes(1 << 24)) + machine.flush(zlib.Z_FULL_FLUSH)
    whole += block * (count * 8 >> 24)  # after a full flush a block can be repeated as it is
    head = b"MATLAB 5.0 MAT-file, made to harm".ljust(124) + b"\x00\x01IM"
    path.write_bytes(head + struct.pack("<II", 15, len(whole)) + whole)
    return path


@pytest.mark.all
def test_a_small_file_that_becomes_gigabytes_is_a_finding_and_not_our_end(tmp_path: Path) -> None:
    """The whole command, with less memory than the file asks for."""
    data = tmp_path / "data"
    sound(data / "sub-A1/eeg/sub-A1_task-rest_eeg.set")
    bad = bomb(data / "sub-A2/eeg/sub-A2_task-rest_eeg.set")
    assert bad.stat().st_size < 20e6
    code = f"""
from holdfast.cli.main import main
assert main(["eeg", "check", {str(data)!r}]) == 1
"""
    said, peak = peak_of(code, tmp_path)
    assert "sub-A2_task-rest: too large: its" in said and not list(tmp_path.glob("holdfast-report-*"))
    assert peak < 1500, "megabytes"


def test_what_it_becomes_is_counted_without_making_it(tmp_path: Path) -> None:
    matlab.check_size(sound(tmp_path / "sound.set"))
    from scipy.io import savemat

    savemat(tmp_path / "packed.set", {"data": np.zeros((100, 1000))}, appendmat=False, do_compression=True)
    matlab.check_size(tmp_path / "packed.set")
    bad = bomb(tmp_path / "bad.set", GIGABYTE)
    with pytest.raises(DataFault, match=r"too large: its .* unpack to .* or more"):
        matlab.check_size(bad)
    for cut in (100, 130, 140, 1000):  # cut anywhere, it is somebody else's to say what is wrong
        (tmp_path / "cut.set").write_bytes(bad.read_bytes()[:cut])
        matlab.check_size(tmp_path / "cut.set")
        with pytest.raises(DataFault):
            reading.open(tmp_path / "cut.set")


def test_what_measures_well_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording packs to a half: it may be as large as the memory allows."""
    monkeypatch.setattr(data_files.processes, "available_memory", lambda: 64 * GIGABYTE)
    data_files.check_room(4 * GIGABYTE, 8 * GIGABYTE)
    with pytest.raises(data_files.TooLarge):
        data_files.check_room(4 << 20, GIGABYTE)
    monkeypatch.setattr(data_files.processes, "available_memory", lambda: 2 * GIGABYTE)
    with pytest.raises(data_files.TooLarge):
        data_files.check_room(4 * GIGABYTE, 8 * GIGABYTE)


def hdf(path: Path, **sets: object) -> Path:
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in sets.items():
            file[name] = value
        file.create_dataset("zeros", shape=(1 << 27,), chunks=(1 << 16,), compression="gzip", dtype="f8")
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(126) + b"IM")
    return path


def test_version_73_says_its_size_and_has_no_links_to_other_files(tmp_path: Path) -> None:
    import h5py

    with pytest.raises(DataFault, match="too large"):
        reading.open(hdf(tmp_path / "large.set"))
    (tmp_path / "own.h5").write_bytes(b"")
    with pytest.raises(DataFault, match=r"'a' in it is a link to another file"):
        reading.open(hdf(tmp_path / "link.set", a=h5py.ExternalLink(str(tmp_path / "own.h5"), "/x")))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("ending", [".set", ".bdf", ".edf", ".fif", ".vhdr"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"sub-A1_eeg{ending}"
    os.mkfifo(path)
    with pytest.raises(DataFault, match="a pipe, not a file"):
        reading.open(path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["../own.eeg", "/etc/passwd", "..\\own.eeg", "link.eeg"])
def test_a_brainvision_header_names_files_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "own.eeg").write_bytes(bytes(8000))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/link.eeg").symlink_to(tmp_path / "own.eeg")
    path = tmp_path / "set/sub-A1_eeg.vhdr"
    path.write_text(
        "Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nCodepage=UTF-8\n"
        f"DataFile={name}\nMarkerFile=own.vmrk\nDataFormat=BINARY\nDataOrientation=MULTIPLEXED\n"
        "NumberOfChannels=1\nSamplingInterval=10000\n"
        "[Binary Infos]\nBinaryFormat=IEEE_FLOAT_32\n[Channel Infos]\nCh1=E1,,1,µV\n"
    )
    with pytest.raises(DataFault, match=r"not beside it|is a link"):
        reading.open(path)
    path.write_text(path.read_text().replace(name, "own.eeg"))
    (tmp_path / "set/own.eeg").write_bytes(bytes(8000))
    marks = "Brain Vision Data Exchange Marker File, Version 1.0\n[Common Infos]\nCodepage=UTF-8\n[Marker Infos]\n"
    (tmp_path / "set/own.vmrk").write_text(marks)
    assert reading.open(path).samples == 2000


def npz(path: Path, megabytes: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("x.npy", "w") as f:
        head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4), }" % (megabytes << 16)
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n")
        for _ in range(megabytes):
            f.write(bytes(1 << 20))
    return path


@pytest.mark.all
def test_arrays_that_unpack_to_gigabytes_are_an_error_with_a_name(tmp_path: Path) -> None:
    from holdfast.optimize.subject import read_inputs

    with pytest.raises(UserError, match=r"bad\.npz cannot be read") as refused:
        read_inputs(npz(tmp_path / "bad.npz", 520), "data")
    assert "unpack to" in str(refused.value.cause)
    found, _ = read_inputs(npz(tmp_path / "good.npz", 1), "data")
    assert found["x"].shape == (1 << 16, 4)
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % (1 << 45)
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(huge) + 1) + huge + b"\n")
    with pytest.raises(UserError, match=r"huge\.npy cannot be read"):
        read_inputs(tmp_path / "huge.npy", "data")


def test_the_reason_is_one_that_is_explained() -> None:
    assert "too large" in REASONS
