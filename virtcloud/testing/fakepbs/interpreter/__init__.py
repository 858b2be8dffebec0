"""What runs in the interpreter of a hook: the module ``pbs`` for one event, and the run of the hook itself.

Written in the language of Python 3.6 with its standard library only, and importing nothing of virtcloud: it is loaded
alone, by whatever Python a hook is to be tried with.
"""
