"""VPN access through a gateway: the OpenVPN servers, who may connect, and the connected devices."""
