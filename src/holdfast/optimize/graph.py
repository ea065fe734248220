"""A model of PyTorch as data: a list of operators in JSON, and its weights in safetensors. Nothing of it is code.

    run = load(Path("model.json"))      # ValueError for anything that is not on the list below
    run(tensor)                         # a tuple of tensors

This file travels in a bundle and needs torch and safetensors alone. PyTorch's own archives (torch.export, TorchScript,
AOTInductor) hold pickles, programs or machine code: whoever loads one runs what is in it. Here an operator is a name
that has to be on a list, an argument is a number, a word, a type or the result of an operator before it, and that is
all.
"""

import json
import math
import operator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

SCHEMA = 1
MOST_BYTES, MOST_STEPS, DEEPEST = 64 << 20, 200_000, 4

_NAMES = """
    abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    add addbmm addcdiv addcmul addmm addmv affine_grid_generator alias all alpha_dropout amax amin angle any arange
    argmax argmin argsort as_strided asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d
    avg_pool2d avg_pool3d baddbmm batch_norm bilinear bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor bmm broadcast_tensors broadcast_to bucketize cat cdist ceil celu channel_shuffle
    chunk clamp clamp_max clamp_min clip clone col2im concat concatenate constant_pad_nd contiguous conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution copy copysign corrcoef cos cosh
    cosine_similarity count_nonzero cov cross cummax cummin cumprod cumsum cumulative_trapezoid deg2rad detach diag
    diag_embed diagonal diagonal_scatter diff div divide dot dropout dstack einsum elu embedding eq erf erfc erfinv
    exp exp2 expand expand_as expm1 eye feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft
    fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2
    fft_rfftfreq fft_rfftn fill flatten flip fliplr flipud floor floor_divide fmax fmin fmod frac frobenius_norm full
    full_like gather ge gelu glu greater greater_equal grid_sampler grid_sampler_2d grid_sampler_3d group_norm gru
    gru_cell gt hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh heaviside hstack hypot i0 im2col
    imag index index_add index_copy index_fill index_put index_select inner instance_norm isclose isfinite isinf isnan
    istft kthvalue layer_norm ldexp le leaky_relu lerp less less_equal lgamma lift lift_fresh lift_fresh_copy
    linalg_cholesky linalg_cross linalg_det linalg_diagonal linalg_eigh linalg_inv linalg_matmul linalg_matrix_exp
    linalg_matrix_norm linalg_matrix_power linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet
    linalg_solve linalg_solve_triangular linalg_svd linalg_vecdot linalg_vector_norm linear linspace log log10 log1p
    log2 log_sigmoid log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor
    logit logsumexp lstm lstm_cell lt masked_fill masked_scatter masked_select matmul matrix_exp max max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices maximum mean median
    meshgrid min minimum mish mm mode movedim mse_loss mul multiply mv nan_to_num nanmean nansum narrow narrow_copy
    native_batch_norm native_dropout native_group_norm native_layer_norm ne neg negative new_full new_ones new_zeros
    nonzero nonzero_numpy norm not_equal numel numpy_T one_hot ones ones_like outer pad pairwise_distance permute
    pixel_shuffle pixel_unshuffle polar positive pow prelu prod quantile rad2deg ravel real reciprocal
    reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 remainder renorm repeat repeat_interleave
    replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resolve_conj resolve_neg rms_norm
    rnn_relu rnn_tanh roll rot90 round rrelu rsqrt rsub scalar_tensor scaled_dot_product_attention scatter scatter_add
    scatter_reduce searchsorted select select_scatter selu sgn sigmoid sign signbit silu sin sinc sinh size slice
    slice_scatter softmax softplus softshrink sort special_erf special_erfc special_expit special_i0 split
    split_with_sizes sqrt square squeeze stack std std_mean stft stride sub subtract sum sym_numel sym_size
    sym_storage_offset sym_stride t take take_along_dim tan tanh tensor_split tensordot threshold tile to topk trace
    transpose trapezoid tril tril_indices triu triu_indices true_divide trunc type_as unbind unflatten unfold
    unsafe_chunk unsafe_split unsqueeze upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander var var_mean view view_as view_as_complex
    view_as_real vstack where xlogy zero zeros zeros_like _adaptive_avg_pool2d _adaptive_avg_pool3d _conj _convolution
    _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_eigh _linalg_slogdet _linalg_svd _log_softmax
    _native_batch_norm_legit_no_training _reshape_alias _safe_softmax _softmax _to_copy _unsafe_view
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _weight_norm _weight_norm_interface
"""
ATEN = frozenset(_NAMES.split())
"""Operators that compute numbers out of numbers. None reads a file, loads a library, calls Python or gives memory as it
was before (`empty`). One that is missing here is refused when a bundle is made, and may be added."""
_ARITHMETIC = "add sub mul floordiv truediv mod neg eq ne lt le gt ge and_ or_ getitem"
_SIZES = "sym_float sym_int sym_max sym_min sym_not sym_ite sym_sum"
PLAIN = {
    **{f"operator.{name}": getattr(operator, name) for name in _ARITHMETIC.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    **{f"torch.{name}": getattr(torch, name) for name in _SIZES.split() if hasattr(torch, name)},
}
"""Arithmetic with sizes, which are numbers of Python."""
_DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128"
TYPES = {
    "dtype": _DTYPES.split(),
    "layout": ["strided"],
    "memory_format": ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"],
}


class Value:
    """A place in the list of everything known so far: weights, inputs, results."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class Graph:
    """Runs one operator after the other."""

    def __init__(self, weights: list[Any], inputs: int, steps: list[Any], outputs: list[int]) -> None:
        self._weights, self._inputs, self._outputs = weights, inputs, outputs
        self._steps = [(*step, over) for step, over in zip(steps, _over(steps, weights, inputs, outputs), strict=True)]

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        if len(given) != self._inputs:
            raise ValueError(f"{len(given)} inputs instead of {self._inputs}")
        values = [*self._weights, *given]
        for function, args, more, over in self._steps:
            filled = [_filled(each, values) for each in args]
            values.append(function(*filled, **{name: _filled(each, values) for name, each in more}))
            for place in over:
                values[place] = None
        return tuple(values[place] for place in self._outputs)


def _filled(given: Any, values: list[Any]) -> Any:
    if type(given) is Value:
        return values[given.place]
    if type(given) is list:  # one without values is a tuple, and stays as it is
        return [_filled(each, values) for each in given]
    return given


def _over(steps: list[Any], weights: list[Any], inputs: int, outputs: list[int]) -> list[list[int]]:
    """What is used for the last time at each step: its memory is free after it."""
    seen, found = set(outputs), []
    for at in range(len(steps) - 1, -1, -1):
        mine = len(weights) + inputs + at
        used = {place for given in (steps[at][1], [each for _, each in steps[at][2]]) for place in _places(given)}
        found.append(sorted((used | {mine}) - seen))
        seen |= used | {mine}
    return found[::-1]


def _places(given: Any) -> list[int]:
    if type(given) is Value:
        return [given.place]
    return [place for each in given for place in _places(each)] if isinstance(given, (list, tuple)) else []


# Reading ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> Graph:
    """The graph in a file, which may come from anywhere, with the weights beside it."""
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"{path.name} is longer than {MOST_BYTES} bytes")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not JSON") from None
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} is not the graph of a model")
    given, steps, outputs, inputs = (said.get(key) for key in ("weights", "steps", "outputs", "inputs"))
    if not isinstance(given, list) or not isinstance(steps, list) or len(steps) > MOST_STEPS:
        raise ValueError(f"{path.name} has no list of weights or of steps")
    if type(inputs) is not int or not 0 < inputs < 1000:
        raise ValueError(f"{path.name} says that it takes {inputs!r} inputs")
    first = len(given) + inputs
    made = [_step(each, first + at) for at, each in enumerate(steps)]
    if not isinstance(outputs, list) or not all(
        type(each) is int and 0 <= each < first + len(made) for each in outputs
    ):
        raise ValueError(f"{path.name} has no list of outputs")
    return Graph(_weights(path.with_suffix(".safetensors"), given), inputs, made, outputs)


def _weights(path: Path, given: list[Any]) -> list[Any]:
    try:
        kept = load_file(path) if given else {}
    except SafetensorError as error:
        raise ValueError(f"{path.name} is not a file of weights: {error}") from None
    found = []
    for each in given:
        if not isinstance(each, dict) or each.get("name") not in kept:
            raise ValueError(f"{path.name} lacks a weight")
        found.append(kept[each["name"]].to(_device(each.get("device"))))
    return found


def _step(said: Any, known: int) -> tuple[Any, list[Any], list[tuple[str, Any]]]:
    if not isinstance(said, dict) or not isinstance(said.get("do"), str):
        raise ValueError("a step names no operator")
    args, more = said.get("args", []), said.get("more", {})
    if not isinstance(args, list) or not isinstance(more, dict):
        raise ValueError(f"{said['do'][:100]} has no list of arguments")
    plain = said["do"] in PLAIN
    return (
        function(said["do"]),
        [_argument(each, known, plain) for each in args],
        [(name, _argument(each, known, plain)) for name, each in more.items()],
    )


def function(name: str) -> Any:
    """The operator of that name; ValueError unless it is on the list."""
    if name in PLAIN:
        return PLAIN[name]
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if space != "aten" or packet.removesuffix("_") not in ATEN or overload.split("_")[-1] == "out":
        raise ValueError(f"the operator {name[:100]} is not one that a graph may hold")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "none", None)
    if not isinstance(found, type(torch.ops.aten.add.Tensor)):
        raise ValueError(f"this version of PyTorch has no operator {name[:100]}")
    return found


def _argument(said: Any, known: int, plain: bool, depth: int = 0) -> Any:
    if said is None or type(said) in (bool, int, float) or (type(said) is str and not plain):
        return said
    if type(said) is list and depth < DEEPEST:
        found = [_argument(each, known, plain, depth + 1) for each in said]
        return found if _places(found) else tuple(found)
    if type(said) is dict and len(said) == 1:
        ((kind, name),) = said.items()
        if kind == "value" and type(name) is int and 0 <= name < known:
            return Value(name)
        if kind == "number" and name in ("inf", "-inf", "nan"):
            return float(name)
        if kind == "device":
            return _device(name)
        if kind in TYPES and name in TYPES[kind]:
            return getattr(torch, name)
    raise ValueError(f"{str(said)[:100]} is not an argument that a graph may hold")


def _device(name: Any) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise ValueError(f"{str(name)[:100]} is not a device that a graph may name")
    return torch.device(name)
