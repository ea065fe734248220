"""`holdfast.train(fn)` and `holdfast.find()`: runs that a notebook or another program starts and looks at.

function_source.py   the source of a function and of all that it uses, as a script that a worker can import
plain_values.py      which values of a notebook can be written down in such a script, and how
calling.py           `train` and `find`: starts `holdfast train SCRIPT --detach` and waits
training_run.py      what they return
"""
