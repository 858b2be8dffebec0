"""The database: tables, queries and changes.

``store.py`` documents transactions. ``lock_scopes.py`` documents the order of locks.
"""
