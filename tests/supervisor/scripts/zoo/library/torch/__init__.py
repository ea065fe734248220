"""A torch that has nothing but an optimizer which makes steps: a script of the zoo starts in no time."""

__version__ = "0"
