"""The database: clusters, claims, and the wanted and observed state of elements.

``unit_of_work.py`` documents transactions. ``lock_scopes.py`` documents the order of locks.
"""
