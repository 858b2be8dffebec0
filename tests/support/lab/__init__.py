"""Helpers for tests in a real lab."""
