"""Requests of batch jobs, the clusters for these requests, and the job notations of the batch systems. Pure.

The hooks contain this package. Therefore this package uses only the standard library and the syntax of Python 3.6.
"""
