"""Numbers that stand for values and are the same in every process, unlike those of `hash()`."""

from hashlib import blake2b


def number(*values: object, bits: int = 63) -> int:
    """A number of `bits` bits (at most 64) for the values' `repr`."""
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=8).digest(), "little") >> (64 - bits)
