"""Extension module of kvatlas that includes the laboratory.

`kvatlas` loads it instead of its own, from this directory.
"""
