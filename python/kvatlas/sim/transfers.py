"""Duration of transfers of KV blocks, with constants measured for some machines.

    time = floor + per_token · tokens, and `connect` more at the first pull of a pair of engines

Transfers over one link follow each other: the `floor` parts of several transfers overlap, the other parts do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvatlas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Transfer:
    """Constants of a transfer's duration, in seconds.

    Attributes:
        floor: Constant part of every transfer.
        per_token: Additional time for each token.
        connect: Additional time for the first transfer of a pair of engines.
    """

    floor: float = 0.0
    per_token: float = 0.0
    connect: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must be a number of seconds, not below 0, got {value}")

    def of(self, tokens: int) -> float:
        """Duration, in seconds, of one transfer over an otherwise unused link."""
        return self.floor + self.per_token * tokens


TRANSFERS: dict[str, Transfer] = {
    "free": Transfer(),
    "pcie-host": Transfer(0.012, 3.3e-6),
    "nvme": Transfer(0.012, 4.7e-6),
    "rdma-store": Transfer(0.012, 13.1e-6),
    "h200-rdma": Transfer(0.0255, 4.07e-6, 0.13),
    "glm-rdma": Transfer(1.66, 6.1e-6, 6.0),
    "ethernet-10g": Transfer(0.0255, 100e-6, 0.13),
}
"""Constants of transfers, by name.

- `pcie-host`: host memory to the device over PCIe, a model of 98 KB a token on an H20 (29 GB/s); the floor is the
  measured 54 ms less 42 ms for a hit on the device.
- `nvme`: the same model over 21 GB/s of disks, computed; the floor is the host's.
- `rdma-store`: the same model from a store over RDMA, 0.97 s for 64 K tokens, less a hit on the device; the floor is
  the host's.
- `h200-rdma`: a pull from a peer's host memory of gpt-oss-120b on H200, fitted to llm-d's five published points of 2 to
  48 K tokens, within 7 %. The first contact is a measurement on one machine.
- `glm-rdma`: a pull of GLM-5.2 in FP8, 93 KB a token, fitted to llm-d's report of 8 to 98 K tokens, within 0.15 s.
- `ethernet-10g`: 98 KB a token over 1 GB/s, computed.
"""


def find_transfer(name: str) -> Transfer:
    """Find the constants of a transfer by name. Raises `ConfigError`, with the known names, for an unknown name."""
    try:
        return TRANSFERS[name]
    except KeyError:
        raise ConfigError(f"no transfer {name!r}: there is {', '.join(TRANSFERS)}") from None


class Link:
    """Link that carries one transfer after another, in the order of their starts."""

    def __init__(self) -> None:
        self.free_at = -math.inf  # when all that it was given has passed

    def carry(self, transfer: Transfer, tokens: int, now: float) -> float:
        """Send `tokens` tokens over the link from time `now` on.

        Returns the time, in seconds, at which the transfer ends.
        """
        self.free_at = max(now + transfer.floor, self.free_at) + transfer.per_token * tokens
        return self.free_at
