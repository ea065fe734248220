"""A plain loop that does work at the head of each epoch: a scheduler, and a running mean that begins there."""

import sys

import torch

import holdfast


def main():
    epochs, batches = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(batches * 4, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    loader = holdfast.attach(model, optimizer, loader, scheduler=scheduler)
    loader.state.setdefault("seen", 0)
    for epoch in loader.epochs(epochs):
        scheduler.step()
        running = loader.meter("loss")
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running.add(loss.item())
            loader.state["seen"] += len(inputs)
        print("epoch", epoch, repr(running.mean), loader.state["seen"], scheduler.get_last_lr()[0], flush=True)
    torch.save(model.state_dict(), "final.pt")


if __name__ == "__main__":
    main()
