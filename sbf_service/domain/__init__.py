"""The rules of the service, as pure code.

*Pure* modules read no file, no clock and no database.
"""
