"""A stream of Hugging Face datasets that counts what is read, and a collator that masks, as the thread's script has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import datasets
import torch
from shared import HERE, kill_at
from transformers import RobertaConfig, TrainerCallback, TrainingArguments

SHARDS, IN_SHARD, BATCH, STEPS = 40, 8, 4, 50


def rows(shards: list[int]) -> Iterator[dict[str, list[int]]]:
    for shard in shards:
        for row in range(IN_SHARD):
            with (HERE / f"read-{os.getpid()}").open("a", encoding="ascii") as file:
                file.write(".")
            words = torch.randint(4, 64, (12,), generator=torch.Generator().manual_seed(shard * IN_SHARD + row))
            yield {"input_ids": words.tolist()}


def stream() -> datasets.IterableDataset:
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(SHARDS))})


def masked(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """15 % of the words are hidden; those are to be found."""
    words = torch.tensor([row["input_ids"] for row in rows])
    hidden = torch.rand(words.shape) < 0.15
    return {"input_ids": words.masked_fill(hidden, 3), "labels": words.masked_fill(~hidden, -100)}


def small() -> RobertaConfig:
    return RobertaConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip


class Dies(TrainerCallback):
    """kill -9 after 40 of 50 steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        kill_at(state.global_step, 40)


def arguments() -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(HERE / "out"), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3,
        save_steps=4, save_total_limit=2, report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
