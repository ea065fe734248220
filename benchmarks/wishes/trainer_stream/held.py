"""The same with our two lines: an import and a callback."""

import torch
from parts import Dies, arguments, masked, small, stream
from shared import HERE, finish
from transformers import RobertaForMaskedLM, Trainer

from holdfast.integrations.transformers import HoldfastCallback

torch.manual_seed(0)
model = RobertaForMaskedLM(small())
trainer = Trainer(
    model, arguments(), data_collator=masked, train_dataset=stream(), callbacks=[Dies(), HoldfastCallback()]
)
trainer.train(resume_from_checkpoint=any((HERE / "out").glob("checkpoint-*")))
finish(model)
