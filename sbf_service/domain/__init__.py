"""The rules of the service, such as allocation, lifecycle, paths, wanted states, idempotency and rights.

All modules of this package are pure: they read no file, no clock and no database.
"""
