"""The code that runs in the interpreter of a hook, creates the module ``pbs`` for one event, and runs the hook.

An interpreter of any Python version from 3.6 on may load the code. Therefore the code uses only the standard library
and the language of Python 3.6, and imports no other module of virtcloud.
"""
