"""Real CUDA faults that torch's own operations refuse to make: a kernel that writes to an address that is not there."""

from __future__ import annotations

import ctypes

_PTX = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry bad_store()
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, 64;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""


def illegal_write() -> None:
    """Launch a kernel that stores to address 64 and wait for the error torch reports."""
    import torch

    torch.cuda.current_stream().synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), _PTX))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"bad_store"))
    _check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    torch.cuda.synchronize()


def _check(code: int) -> None:
    if code != 0:
        raise OSError(f"the CUDA driver answered {code}")
