"""Entry point of `python -m kvatlas.cli`."""

from kvatlas.cli import main

main(prog_name="kvatlas")
