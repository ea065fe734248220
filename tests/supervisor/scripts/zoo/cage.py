"""What every script of the zoo does around its wait: some steps before it, some after it, and a last word.

python honest.py NAME SECONDS        # waits for what comes after so many seconds, and goes on
python stuck.py NAME                 # waits for what never comes
"""

import glob
import sys
import time

from torch.optim.optimizer import Optimizer

OPTIMIZER = Optimizer()


def steps(count):
    for _ in range(count):
        OPTIMIZER.step()
        time.sleep(0.01)


def main(animals):
    name, words = sys.argv[1], sys.argv[2:]
    steps(5)
    while not glob.glob("runs/*/beat.json"):  # it is watched
        time.sleep(0.1)
    print("steps 5", flush=True)
    animals[name](*map(float, words))
    steps(5)
    print("done", flush=True)


def animals(space):
    """Every function of a module that begins a wait."""
    return {name: each for name, each in space.items() if callable(each) and not name.startswith("_")}
