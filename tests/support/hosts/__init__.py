"""Hosts: their network, their images and guests, and the services that an agent offers to guests and jobs."""
