"""Transactions: locks, group commit, and notices of changes."""
