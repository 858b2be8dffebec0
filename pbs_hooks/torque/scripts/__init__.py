"""The scripts that Torque runs: the standard library and the language of Python 3.6."""
