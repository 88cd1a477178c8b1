"""Hostile clients and engines against all processes of kvatlas at once: `make attack`."""
