"""Networks, and what gateways do in networks: routers, service nodes, destinations and publications."""
