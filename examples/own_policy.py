"""A policy of one's own in the router: the engine with the least to compute."""

import json
import urllib.request

import numpy as np

import kvatlas.router as kr
from kvatlas.routing import Candidates, RoutedRequest
from kvatlas.sim.server import Fleet, ServerConfig


class LeastToCompute:
    """Picks the engine with the fewest tokens to compute before this prompt is done."""

    def choose(self, request: RoutedRequest, candidates: Candidates) -> int:
        """The row of an engine. `depth` counts leading blocks that an engine has in its cache."""
        uncached = request.tokens - candidates.depth * request.block_size
        return int(np.argmin(uncached + candidates.queued_tokens))


def main() -> None:
    """Send one long prompt three times: the engine that computed it first should get it again."""
    config = kr.RouterConfig(http=kr.RouterHttpConfig(bind="127.0.0.1:0"), router=kr.RouterSection(tokenizer="none"))
    body = json.dumps({"model": "sim-model", "prompt": list(range(640)), "max_tokens": 4}).encode()
    with (
        Fleet(2, ServerConfig(speed=100)) as fleet,
        kr.Router(engines=fleet.urls, config=config, policy=LeastToCompute()) as router,
    ):
        router.wait_ready()
        for _ in range(3):
            request = urllib.request.Request(f"{router.url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                engine = answer.headers["x-kvatlas-worker"]
                cached = json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]
                print(f"{engine} had {cached} of 640 tokens cached")


if __name__ == "__main__":
    main()
