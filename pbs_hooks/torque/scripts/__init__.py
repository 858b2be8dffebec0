"""The scripts that Torque runs. They use only the standard library and the language of Python 3.6."""
