"""Frameworks and plain loops, a few lines away from exact recovery. Each module is imported by those who use it.

    holdfast.attach(model, optimizer, loader)           attach.py         a plain loop
    holdfast.integrations.lightning.HoldfastCallback    lightning.py      Lightning
    holdfast.integrations.transformers.HoldfastCallback transformers.py   the Trainer of transformers
    holdfast.integrations.ultralytics.attach            ultralytics.py    ultralytics, if you installed it
    outside.py   the way to the supervisor              data.py           a DataLoader that goes on in the middle

Under `holdfast run` they hand the state out about once a second, or at each step with `snapshot.every=1`.
Started by themselves, the same scripts train as before.
"""
