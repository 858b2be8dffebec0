"""The cost of calls in installations of several sizes.

``python -m benchmarks.scale`` fills a database with the rows of an installation of each size. Then the benchmark calls
each operation in its own Python process, and counts the SQL statements, the rows and the processor time.
"""
