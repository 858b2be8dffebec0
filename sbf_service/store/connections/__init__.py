"""Connections to the database, their errors, and the lock that a replica holds."""
