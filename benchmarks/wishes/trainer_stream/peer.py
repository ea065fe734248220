"""transformers#11284, reduced: RoBERTa from a stream, resumed from its last checkpoint."""

import torch
from parts import Dies, arguments, masked, small, stream
from shared import HERE, finish
from transformers import RobertaForMaskedLM, Trainer

torch.manual_seed(0)
model = RobertaForMaskedLM(small())
trainer = Trainer(model, arguments(), data_collator=masked, train_dataset=stream(), callbacks=[Dies()])
trainer.train(resume_from_checkpoint=any((HERE / "out").glob("checkpoint-*")))
finish(model)
