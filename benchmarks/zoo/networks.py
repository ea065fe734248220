"""The networks: torchvision, transformers, braindecode and what people write themselves, with small inputs.

names()                          # all; the held-out third is not looked at while bounds are worked on
network = make("resnet18")       # .model, .batch(), .loss(batch): a training step
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


@dataclass(slots=True)
class Network:
    model: nn.Module
    batch: Callable[[], Any]
    loss: Callable[[Any], Tensor]
    images: bool = False
    """Whether its inputs can be channels_last."""


def _mean(out: Any) -> Tensor:
    """Some loss: every output takes part."""
    tensors = [each for each in _tensors(out) if each.is_floating_point() and each.requires_grad]
    return sum((each.float().square().mean() for each in tensors), torch.zeros(()))  # type: ignore[return-value]


def _tensors(out: Any) -> list[Tensor]:
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    return [t for each in out for t in _tensors(each)] if isinstance(out, (list, tuple)) else []


# torchvision --------------------------------------------------------------------------------------------------------


def _classifier(name: str, size: int, **more: Any) -> Network:
    import torchvision

    model = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES, **more)

    def loss(batch: Any) -> Tensor:
        out = model(batch[0])
        heads = [out] if isinstance(out, Tensor) else [each for each in out if each is not None]
        return sum(F.cross_entropy(each.float(), batch[1]) for each in heads)  # type: ignore[return-value]

    return Network(model, lambda: [torch.randn(4, 3, size, size), torch.randint(CLASSES, (4,))], loss, images=True)


def _segmentation(name: str) -> Network:
    import torchvision

    make = getattr(torchvision.models.segmentation, name)
    model = make(weights=None, weights_backbone=None, num_classes=5)
    batch = lambda: [torch.randn(2, 3, 64, 64), torch.randint(5, (2, 64, 64))]  # noqa: E731
    return Network(model, batch, lambda b: F.cross_entropy(model(b[0])["out"].float(), b[1]), images=True)


def _detector(name: str) -> Network:
    import torchvision

    make = getattr(torchvision.models.detection, name)
    model = make(weights=None, weights_backbone=None, num_classes=5)
    if hasattr(model.transform, "min_size") and not name.startswith("ssd"):
        model.transform.min_size, model.transform.max_size = (64,), 96

    def batch() -> Any:
        boxes = torch.tensor([[4.0, 4.0, 40.0, 44.0], [10.0, 20.0, 60.0, 60.0]])
        return [list(torch.rand(2, 3, 64, 64)), [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in range(2)]]

    return Network(model, batch, lambda b: sum(model(b[0], b[1]).values()))  # type: ignore[arg-type]


def _video(name: str) -> Network:
    import torchvision

    model = getattr(torchvision.models.video, name)(weights=None, num_classes=CLASSES)
    frames, size = (16, 224) if name == "s3d" else (4, 32)
    batch = lambda: [torch.randn(2, 3, frames, size, size), torch.randint(CLASSES, (2,))]  # noqa: E731
    return Network(model, batch, lambda b: F.cross_entropy(model(b[0]).float(), b[1]))


_CLASSIFIERS = {
    "alexnet": 96, "vgg11_bn": 32, "resnet18": 48, "resnext50_32x4d": 32, "wide_resnet50_2": 32, "densenet121": 32,
    "squeezenet1_1": 48, "googlenet": 64, "mobilenet_v2": 32, "mobilenet_v3_small": 32, "mobilenet_v3_large": 32,
    "shufflenet_v2_x0_5": 48, "mnasnet0_5": 32, "efficientnet_b0": 32, "efficientnet_v2_s": 32, "regnet_x_400mf": 32,
    "regnet_y_400mf": 32, "convnext_tiny": 32, "swin_t": 32, "swin_v2_t": 32,
}  # fmt: skip
_SEGMENTATION = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
_DETECTORS = ("ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn",
              "fcos_resnet50_fpn")  # fmt: skip
_VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d")


# transformers -------------------------------------------------------------------------------------------------------

_SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_ROPE = {**_SMALL, "num_key_value_heads": 2, "pad_token_id": 0}
_TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", _SMALL),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _SMALL),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**_SMALL, "embedding_size": 32}),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**_SMALL, "embedding_size": 16}),
    "deberta_v2": ("DebertaV2Config", "DebertaV2ForMaskedLM", _SMALL),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM",
                   {"vocab_size": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _SMALL),
    "opt": ("OPTConfig", "OPTForCausalLM", {**_SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _ROPE),
    "mistral": ("MistralConfig", "MistralForCausalLM", _ROPE),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _ROPE),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_ROPE, "head_dim": 8}),
    "phi": ("PhiConfig", "PhiForCausalLM", {**_SMALL, "pad_token_id": 0}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_ROPE, "num_local_experts": 4}),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2}),
    "xlnet": ("XLNetConfig", "XLNetLMHeadModel",
              {"vocab_size": 96, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "t5": ("T5Config", "T5ForConditionalGeneration",
           {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
            "decoder_start_token_id": 0}),
    "bart": ("BartConfig", "BartForConditionalGeneration",
             {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration",
                {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
                 "decoder_ffn_dim": 64}),
}  # fmt: skip
_PIXELS = {**_SMALL, "image_size": 32, "patch_size": 8}
_VISION = {
    "vit": ("ViTConfig", "ViTForImageClassification"),
    "deit": ("DeiTConfig", "DeiTForImageClassification"),
    "beit": ("BeitConfig", "BeitForImageClassification"),
}


def _language(name: str) -> Network:
    transformers = importlib.import_module("transformers")
    config, model_name, sizes = _TEXT[name]
    model = getattr(transformers, model_name)(getattr(transformers, config)(**sizes))

    def loss(ids: Tensor) -> Tensor:
        out: Tensor = model(input_ids=ids, labels=ids).loss
        return out

    return Network(model, lambda: torch.randint(1, 96, (3, 17)), loss)


def _vision(name: str) -> Network:
    transformers = importlib.import_module("transformers")
    config, model_name = _VISION[name]
    made = getattr(transformers, config)(**{k: v for k, v in _PIXELS.items() if k != "vocab_size"})
    model = getattr(transformers, model_name)(made)
    batch = lambda: [torch.randn(3, 3, 32, 32), torch.randint(2, (3,))]  # noqa: E731
    return Network(model, batch, lambda b: F.cross_entropy(model(b[0]).logits.float(), b[1]), images=True)


# braindecode --------------------------------------------------------------------------------------------------------

_BRAIN = ("EEGNet", "ShallowFBCSPNet", "Deep4Net", "EEGConformer", "ATCNet", "EEGInceptionERP", "EEGITNet", "TIDNet",
          "EEGNeX", "EEGTCNet", "FBCNet", "SincShallowNet")  # fmt: skip


def _brain_class(name: str) -> Any:
    from benchmarks.zoo import braindecode_alone

    if not braindecode_alone.used:
        try:
            import braindecode.models

            return getattr(braindecode.models, name)
        except ImportError:
            pass
    return braindecode_alone.model_class(name)


def _brain(name: str) -> Network:
    model = _brain_class(name)(n_chans=8, n_outputs=4, n_times=500, sfreq=125)
    batch = lambda: [torch.randn(3, 8, 500), torch.randint(4, (3,))]  # noqa: E731
    return Network(model, batch, lambda b: F.cross_entropy(model(b[0]).float().reshape(3, 4, -1).mean(-1), b[1]))


# Own ----------------------------------------------------------------------------------------------------------------


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def two(i, o):  # type: ignore[no-untyped-def]  # fmt: skip
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1)
            )

        self.down, self.low = two(3, 16), two(16, 32)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), two(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        return self.out(torch.cat([high, self.up(self.low(F.max_pool2d(high, 2)))], 1))  # type: ignore[no-any-return]


class _Graph(nn.Module):
    """Messages along edges, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = nn.Linear(32, 16), nn.GRUCell(16, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for _ in range(3):
            messages = F.elu(self.edge(torch.cat([x[edges[0]], x[edges[1]]], 1)))
            x = self.node(torch.zeros_like(x).index_add(0, edges[1], messages.to(x.dtype)), x)
        return x


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers, self.head = kind(12, 24, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0].mean(1))  # type: ignore[no-any-return]


def _plain(model: nn.Module, *shape: int, images: bool = False) -> Network:
    batch = lambda: [torch.randn(4, *shape), torch.randint(CLASSES, (4,))]  # noqa: E731
    return Network(model, batch, lambda b: F.cross_entropy(model(b[0]).float(), b[1]), images=images)


def _deep() -> nn.Module:
    """The 17 layers with batch statistics that the comparison of whole steps condemned."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(15):
        layers += [nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


def _unet() -> Network:
    model = _UNet()
    return Network(model, lambda: torch.randn(2, 3, 32, 32), lambda x: _mean(model(x)), images=True)


def _graph() -> Network:
    model = _Graph()
    batch = lambda: [torch.randn(40, 16), torch.randint(40, (2, 160))]  # noqa: E731
    return Network(model, batch, lambda b: _mean(model(b[0], b[1])))


def _windows() -> Network:
    from windows import Windows

    model = Windows()
    return Network(model, lambda: torch.randn(3, 129, 200), lambda x: _mean(model(x)))


def _tied() -> Network:
    words, body = nn.Embedding(96, 32), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.ModuleList([words, body])

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy((body(words(ids)) @ words.weight.T).float().transpose(1, 2), ids)

    return Network(model, lambda: torch.randint(96, (4, 12)), loss)


_OWN: dict[str, Callable[[], Network]] = {
    "mlp": lambda: _plain(nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.BatchNorm1d(64), nn.Linear(64, CLASSES)), 20),
    "deep_cnn": lambda: _plain(_deep(), 3, 16, 16, images=True),
    "u_net": _unet,
    "graph": _graph,
    "rnn": lambda: _plain(_Recurrent(nn.RNN), 15, 12),
    "gru": lambda: _plain(_Recurrent(nn.GRU), 15, 12),
    "lstm": lambda: _plain(_Recurrent(nn.LSTM), 15, 12),
    "windows": _windows,
    "tied": _tied,
}


# As large as people have them: for a GPU ------------------------------------------------------------------------------


def _images(model: nn.Module, batch: int, size: int) -> Network:
    made = lambda: [torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))]  # noqa: E731
    return Network(model, made, lambda b: F.cross_entropy(model(b[0]).float(), b[1]), images=True)


def _torchvision(name: str, batch: int, size: int) -> Network:
    import torchvision

    return _images(getattr(torchvision.models, name)(weights=None, num_classes=CLASSES), batch, size)


def _wide_cnn() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1)]
    for _ in range(15):
        layers += [nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.Conv2d(128, 128, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def _large_language(config: str, model_name: str, sizes: dict[str, Any], words: int) -> Network:
    transformers = importlib.import_module("transformers")
    model = getattr(transformers, model_name)(getattr(transformers, config)(**sizes))
    return Network(model, lambda: torch.randint(1, 8000, (2, words)), lambda ids: model(input_ids=ids, labels=ids).loss)


_ROTARY = {"vocab_size": 8000, "hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12,
           "num_key_value_heads": 4, "intermediate_size": 2048, "pad_token_id": 0}  # fmt: skip
_LARGE: dict[str, Callable[[], Network]] = {
    "deep_cnn_large": lambda: _images(_wide_cnn(), 64, 32),
    "resnet50_large": lambda: _torchvision("resnet50", 16, 224),
    "convnext_tiny_large": lambda: _torchvision("convnext_tiny", 8, 224),
    "efficientnet_b0_large": lambda: _torchvision("efficientnet_b0", 16, 224),
    "vit_b_16_large": lambda: _torchvision("vit_b_16", 8, 224),
    "gpt2_large": lambda: _large_language("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 8000, "n_layer": 6}, 1024),
    "llama_large": lambda: _large_language("LlamaConfig", "LlamaForCausalLM", _ROTARY, 1024),
    "bert_large": lambda: _large_language("BertConfig", "BertForMaskedLM", {"vocab_size": 8000}, 512),
}


def _makers() -> dict[str, Callable[[], Network]]:
    made: dict[str, Callable[[], Network]] = dict(_OWN)
    made |= {name: (lambda n=name, s=size: _classifier(n, s)) for name, size in _CLASSIFIERS.items()}  # type: ignore[misc]
    made |= {name: (lambda n=name: _segmentation(n)) for name in _SEGMENTATION}  # type: ignore[misc]
    made |= {name: (lambda n=name: _detector(n)) for name in _DETECTORS}  # type: ignore[misc]
    made |= {name: (lambda n=name: _video(n)) for name in _VIDEO}  # type: ignore[misc]
    made |= {name: (lambda n=name: _language(n)) for name in _TEXT}  # type: ignore[misc]
    made |= {f"{name}_pixels": (lambda n=name: _vision(n)) for name in _VISION}  # type: ignore[misc]
    made |= {name: (lambda n=name: _brain(n)) for name in _BRAIN}  # type: ignore[misc]
    return made


def image_names() -> set[str]:
    """Those whose inputs can be channels_last."""
    large = {name for name in _LARGE if name.startswith(("deep", "res", "conv", "eff", "vit"))}
    return {*_CLASSIFIERS, *_SEGMENTATION, *(f"{name}_pixels" for name in _VISION), "deep_cnn", "u_net", *large}


def large_names() -> list[str]:
    """Networks of usual size, which no CPU trains in a moment."""
    return list(_LARGE)


def names(*, held_out: bool | None = None) -> list[str]:
    """All; or only the third that is held out; or only the others."""
    every = sorted(_makers())
    if held_out is None:
        return every
    return [name for number, name in enumerate(every) if (number % 3 == 2) is held_out]


def make(name: str) -> Network:
    torch.manual_seed(0)
    network = (_LARGE[name] if name in _LARGE else _makers()[name])()
    network.model.train()
    return network
