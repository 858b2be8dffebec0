"""Code shared by the hooks of all batch systems. Uses only the standard library and the language of Python 3.6."""
