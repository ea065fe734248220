"""pytorch#44624, reduced: one bad input on a CUDA device, then two good tensors. A script, and a notebook cell."""

import torch
from shared import HERE

x = torch.zeros(10).cuda() - 2
y = torch.ones(10).cuda()
try:
    torch.nn.functional.binary_cross_entropy(x, y)  # the device stops at an assertion
    torch.cuda.synchronize()
except RuntimeError as error:
    (HERE / "error").write_text(str(error).partition("\n")[0])
found = (torch.zeros(10).cuda() + torch.ones(10).cuda()).sum().item()
(HERE / "after").write_text(str(found))
