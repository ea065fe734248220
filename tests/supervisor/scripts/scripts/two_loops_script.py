"""Two trainings one after the other, with an optimizer each; then folds with a model each. Nothing is ever saved."""

import time

import torch
from torch import nn


def fit(name, model, optimizer, steps):
    total = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)
        total += loss.item()
        print(f"{name} {step} {loss.item():.9f} {total:.9f}", flush=True)
    return total


torch.manual_seed(0)
net = nn.Linear(4, 1)
before = fit("pretrain", net, torch.optim.AdamW(net.parameters(), lr=0.01), 60)
after = fit("finetune", net, torch.optim.SGD(net.parameters(), lr=0.01), 30)
scores = []
for fold in range(3):
    other = nn.Linear(4, 1)
    scores.append(fit(f"fold{fold}", other, torch.optim.SGD(other.parameters(), lr=0.01), 15))
print(before, after, scores)
torch.save({"net": net.weight, "other": other.weight}, "final.pt")
