"""The guests of a host: their libvirt domains, images and files."""
