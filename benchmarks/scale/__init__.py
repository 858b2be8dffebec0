"""The cost of calls in installations of several sizes.

``python -m benchmarks.scale`` fills a database with the rows of an installation of each size. Then it calls each
operation in its own process, and counts SQL statements, rows and processor time.
"""
