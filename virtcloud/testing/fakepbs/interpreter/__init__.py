"""The code that runs in the interpreter of a hook: it creates the module ``pbs`` for one event and runs the hook.

The code uses only the standard library and the language of Python 3.6, and imports no other module of virtcloud,
because any Python version may load it.
"""
