"""What runs where Torque runs it: the standard library and the language of Python 3.6."""
