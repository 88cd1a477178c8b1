"""A Ray Serve application of three simulated engines, behind a request router that asks kvatlas.

pip install 'ray[serve]==2.60.0' 'kvatlas[sim,tokenizer]'
python examples/ray_serve/app.py
"""

import json
import socket
import tempfile
import time
import urllib.request
from typing import Any

import httpx
from fastapi import FastAPI
from kvatlas_router import KvatlasRouter
from ray import serve
from ray.serve.config import RequestRouterConfig

from kvatlas import Client, Service
from kvatlas.service import Config, HttpConfig
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer

MODEL = "sim-model"
api = FastAPI()


class Engine:
    """A replica: its engine publishes events, which the index follows under the replica's name."""

    def __init__(self, index: str) -> None:
        """Start the engine, and register its events."""
        self.name = serve.get_replica_context().replica_id.unique_id
        self.fleet = Fleet(1, ServerConfig(speed=100))
        self.fleet.start()
        engine = self.fleet[0]
        with Client(index) as client:
            client.register(
                self.name, engine.endpoint(), model=MODEL, block_size=16, replay_endpoint=engine.replay_endpoint()
            )
        self.http = httpx.AsyncClient(base_url=engine.url, timeout=60)

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer, and the name of the replica."""
        answer = await self.http.post("/v1/chat/completions", json=body)
        return {**answer.json(), "replica": self.name}

    def __del__(self) -> None:
        """Stop the engine with the replica."""
        self.fleet.close()


class Ingress:
    """The application's HTTP."""

    def __init__(self, engines: Any) -> None:
        """Take the handle of the engines."""
        self.engines = engines

    @api.post("/v1/chat/completions")  # type: ignore[untyped-decorator] # Ray brings it
    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a chat to the replica that the request router chooses."""
        answer: dict[str, Any] = await self.engines.chat.remote(body)
        return answer


def application(index: str, tokenizer: str) -> Any:
    """The application; `index` is the URL of a `kvatlas serve`."""
    routing = RequestRouterConfig(
        request_router_class=KvatlasRouter,
        request_router_kwargs={"url": index, "model": MODEL, "tokenizer": tokenizer, "timeout": 10.0},
    )
    none = {"num_cpus": 0}
    engines = serve.deployment(Engine, num_replicas=3, ray_actor_options=none, request_router_config=routing)
    return serve.deployment(serve.ingress(api)(Ingress), ray_actor_options=none).bind(engines.bind(index))


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(port: int, messages: list[dict[str, str]]) -> dict[str, Any]:
    """The answer to a chat."""
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def main() -> None:
    """Three conversations of three turns: each stays with the replica that has its beginning."""
    config = Config(http=HttpConfig(bind="127.0.0.1:0"))
    with tempfile.TemporaryDirectory() as folder, Service(config=config) as service:
        serve.start(http_options={"port": (port := free_port())})
        serve.run(application(service.url, str(write_tokenizer(folder))))
        chats = [[{"role": "user", "content": f"{number}. " + "Tell me more. " * 40}] for number in range(3)]
        replicas: list[set[str]] = [set() for _ in chats]
        for turn in range(3):
            for chat, its in zip(chats, replicas, strict=True):
                answer = ask(port, chat)
                its.add(answer["replica"])
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                print(f"turn {turn + 1}: {cached} of {usage['prompt_tokens']} tokens were cached")
                chat.append(answer["choices"][0]["message"])
                chat.append({"role": "user", "content": "Go on. " * 20})
            time.sleep(0.5)  # the engines' events come a little later than their answers
        print("replicas of each conversation:", *map(len, replicas), "of", len(set.union(*replicas)))
        serve.shutdown()


if __name__ == "__main__":
    main()
