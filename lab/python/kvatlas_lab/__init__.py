"""The extension of kvatlas with the laboratory in it. `kvatlas` loads it in place of its own, from this directory."""
