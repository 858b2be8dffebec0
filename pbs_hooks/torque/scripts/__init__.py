"""The scripts that Torque runs. The scripts use only the standard library and the language of Python 3.6."""
