"""Gateways: simulated ones, and real ones with OpenVPN, sshd and routers."""
