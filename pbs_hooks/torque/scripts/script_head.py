"""What every script does before anything else is loaded: it lets the jobs pass that are none of ours."""

import sys

REQUEST_WORDS = ("vcluster=", "net=")
TRUNCATED_FROM = 900
"""A list of resources that is longer may lack one (``call.LONG``)."""
FILTERS = ("submit_filter", "qsub_filter", "torque_submitfilter")
"""The names that a submit filter may have: the last two are those that qsub looks for by itself."""
script = sys.argv[0].rpartition("/")[2]
asks = any(word in argument or len(argument) > TRUNCATED_FROM for argument in sys.argv[1:] for word in REQUEST_WORDS)
