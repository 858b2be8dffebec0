"""Hosts with agents, batch servers and SBF in one simulated time, for `tests/stateful/test_job_machine.py`."""
