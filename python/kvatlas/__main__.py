"""Entry point of `python -m kvatlas`, which runs the command `kvatlas`."""

from kvatlas.cli import main

if __name__ == "__main__":
    main(prog_name="kvatlas")
