"""Kinds of operators, by their names in torch: which are sums, which are left alone.

has_bound("mm")            # whether anything can be said about it
is_linear("convolution")   # products and sums
"""

from __future__ import annotations

import torch

from holdfast.worker.operators.case import Case, operator

MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "addbmm"})
CONVOLUTIONS = frozenset({"convolution", "convolution_backward", "convolution_overrideable"})
GATHERS = frozenset(
    {
        "index_add", "index_add_", "scatter_add", "scatter_add_", "index_put", "index_put_", "_index_put_impl_",
        "embedding_dense_backward", "cumsum", "col2im", "scatter_reduce", "scatter_reduce_",
    }
)  # fmt: skip
"""Sums that may be added up one by one in the format of the result."""
POOLS = (
    "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "upsample_", "_upsample", "max_pool", "adaptive_max_pool",
    "reflection_pad", "replication_pad", "unfold_backward",
)  # fmt: skip
SUMS = frozenset({"sum", "mean", "nansum", "index_select_backward", "select_backward", "slice_backward"})
SKIPPED = (
    "empty", "new_empty", "_empty", "resize_", "set_", "record_stream", "_cdist", "cdist", "_euclidean_dist", "linalg_",
    "_linalg", "svd", "qr", "inverse", "cholesky", "lu_", "triangular_solve", "grid_sampler", "remainder", "fmod",
    "floor_divide", "nearest", "_foreach", "_fused", "_amp_", "_cudnn_rnn", "miopen_rnn", "mkldnn_rnn", "_thnn_fused",
    "_pin_memory", "special_", "histc", "bincount", "_local_scalar", "renorm", "_ctc_loss", "polygamma", "digamma",
    "lgamma", "quantize", "fake_quantize", "_fake_quantize", "_scaled_mm", "bernoulli", "_nested", "_jagged", "atan2",
    "upsample_nearest", "_upsample_nearest", "rand", "normal", "uniform", "sort", "unique",
    "_trilinear", "frexp", "_unsafe_view", "_grouped_mm",
)  # fmt: skip
"""Operators that compute nothing, draw, decide between neighbours by a rounded number, or have no bound here."""


def has_bound(title: str) -> bool:
    """Whether anything can be said about this operator. One that cannot be bounded is never held against a device."""
    if title == "linalg_vector_norm":
        return True
    return not title.startswith(SKIPPED) and "_nearest" not in title


def is_linear(title: str) -> bool:
    """Products and sums: linear in each of their tensors."""
    return title in MATMULS | CONVOLUTIONS | GATHERS | SUMS or title.startswith(POOLS)


def overlaps(title: str) -> bool:
    """Windows that overlap: their gradients may be added up in the format of the result."""
    return title.startswith(POOLS) and title.endswith("backward")


def pointwise(case: Case) -> bool:
    tags = operator(case.name, case.overload).tags
    return torch.Tag.pointwise in tags or case.title in ("_to_copy", "clone", "copy_")
