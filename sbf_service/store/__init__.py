"""The database: tables, queries and changes.

``unit_of_work.py`` documents transactions. ``lock_scopes.py`` documents the order of locks.
"""
