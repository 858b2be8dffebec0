"""Gateways' own interfaces in networks, by which a gateway serves a network as router, relay or server."""

from typing import Final

GATEWAY_ADDRESSES: Final = "gateway-addresses"
"""The requirement of segments with ``gateway_addresses``. An agent that ignores this key would offer none of them."""
