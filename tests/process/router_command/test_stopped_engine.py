"""An engine whose process is stopped: it takes connections, and says nothing any more."""

import contextlib
import json
import os
import signal
import threading
import urllib.request

from kvatlas.router import HealthConfig, Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim.server import Fleet, ServerConfig


def test_requests_leave_an_engine_that_is_stopped_by_a_signal() -> None:
    config = RouterConfig(
        http=RouterHttpConfig(bind="127.0.0.1:0"),
        router=RouterSection(tokenizer="none", policy="round-robin", no_events=True),
        health=HealthConfig(interval=0.2, timeout=0.5),
    )
    answers: list[int] = []

    def ask(url: str, number: int) -> None:
        body = {"model": "sim-model", "prompt": [number] * 64, "max_tokens": 2}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            json.load(answer)
            answers.append(answer.status)

    with (
        Fleet(2, ServerConfig(speed=100)) as fleet,
        Router(engines=fleet.urls, config=config) as router,
    ):
        router.wait_ready()
        for number in range(4):
            ask(router.url, number)  # connections to both are open
        stopped = fleet[0].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            threads = [threading.Thread(target=ask, args=(router.url, 100 + number)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert answers == [200] * 12, "without a byte of theirs, all may be sent again"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
