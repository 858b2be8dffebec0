"""Scenarios of jobs with clusters, which run on a fake batch system and on a real OpenPBS."""
