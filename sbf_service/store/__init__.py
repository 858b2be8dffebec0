"""The database: tables, queries and changes.

``store.py`` documents transactions, and ``transactions/lock_scopes.py`` the order of locks. Each folder contains the
modules of one subject; its ``__init__.py`` names the subject.
"""
