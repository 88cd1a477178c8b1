"""`python -m kvatlas`: the command `kvatlas`."""

from kvatlas.cli import main

if __name__ == "__main__":
    main(prog_name="kvatlas")
