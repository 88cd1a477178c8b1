"""An index service that follows two engines, asked over HTTP how much of a prompt each of them has."""

import time

from kvatlas import Service
from kvatlas.service import Config, HttpConfig
from kvatlas.sim.server import Fleet


def main() -> None:
    """One engine computes a prompt; the service hears of it from the engine's events."""
    config = Config(http=HttpConfig(bind="127.0.0.1:0"))
    with Fleet(2) as fleet, Service(engines=fleet.urls, config=config) as service, service.client() as client:
        service.wait_ready()
        prompt = list(range(1_000))
        fleet[1].complete(prompt)

        deadline = time.monotonic() + 10
        while not (match := client.query(tokens=prompt, model="sim-model")).best() and time.monotonic() < deadline:
            time.sleep(0.01)  # events take some milliseconds
        for worker, blocks in match.best():
            print(f"{worker} has {blocks} of {match.length} blocks")
        for row in client.workers():
            print(f"{row.worker}: {row.status}")


if __name__ == "__main__":
    main()
