"""PURE. What a batch job may request, and the cluster it gets; each batch system's notation of a job.

The hooks contain this package, so it uses the standard library only and the language of Python 3.6.
"""
