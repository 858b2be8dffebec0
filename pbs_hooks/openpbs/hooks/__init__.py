"""The server hook and the MoM hook. Both run inside PBS with the standard library and the language of Python 3.6."""
