"""The first lines of every script: jobs without a request pass before anything is loaded."""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""A longer list of resources may lack the request (``script_call.TRUNCATED_FROM``)."""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""File names of a submit filter; qsub looks for the last two by default."""
script = sys.argv[0].rpartition("/")[2]
asks = any(word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS)
