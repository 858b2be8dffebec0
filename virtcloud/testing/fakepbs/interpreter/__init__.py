"""Code in the interpreter of a hook: the module ``pbs`` for one event, and the run of the hook.

The code uses only the standard library and the language of Python 3.6, and imports no other module of virtcloud,
because any Python version may load it.
"""
