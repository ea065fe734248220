"""The one thing the hook of `holdfast run` asks torch for: who is told of a step."""

HOOKS = []


class Optimizer:
    param_groups = ()

    def step(self):
        for hook in HOOKS:
            hook(self, (), {})


def register_optimizer_step_post_hook(hook):
    HOOKS.append(hook)
