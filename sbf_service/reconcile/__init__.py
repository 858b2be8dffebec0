"""Convergers: what brings switches to what is wanted, and the sweep that watches time.

``choose.py`` and ``verdict.py`` decide and are pure; ``worker.py`` converges one element once, over the database
transactions of ``transactions.py``; ``sessions.py`` holds the sessions with devices; ``backlog.py`` records which
devices are busy and which wait after a failure; ``converger.py`` starts workers, retries, looks for drift, sweeps.
"""
