"""Convergers: what brings switches to what is wanted, and the sweep that watches time.

``choose.py`` and ``verdict.py`` decide and are pure; ``worker.py`` converges one element once; ``sessions.py`` keeps
sessions with devices; ``converger.py`` starts workers, retries, looks for drift and sweeps.
"""
