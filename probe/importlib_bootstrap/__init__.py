"""Nothing but its name, which the file names of our wrappers go through (`instruments.core.patch.unseen`).

`warnings`, and `logging` from Python 3.11 on, pass over frames whose file name holds `importlib` and
`_bootstrap`. The path has to lead somewhere, so that a traceback shows the wrapper's line.
"""
