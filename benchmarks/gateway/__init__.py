"""The time that an Endpoint Picker adds to a gateway: `python -m benchmarks.gateway`."""
