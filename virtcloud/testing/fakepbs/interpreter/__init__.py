"""Code in the interpreter of a hook: the module ``pbs`` for one event, and the run of the hook.

Uses the standard library and the language of Python 3.6 and imports nothing of virtcloud, since any Python may load it.
"""
