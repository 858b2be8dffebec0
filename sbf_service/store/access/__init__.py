"""Users' access to networks by VPN and SSH."""
