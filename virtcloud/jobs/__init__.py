"""What a batch job may ask for, and what it then gets: the request's grammar, and each scheduler's words for a job.

Everything here decides and does nothing. It is also part of the hooks that run inside a scheduler's own Python, so it
uses the standard library only and the language of Python 3.6.
"""
