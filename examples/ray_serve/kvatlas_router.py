"""A request router for Ray Serve that asks kvatlas what each replica's engine has cached.

Ray's interface for request routers is alpha (2.60): this is an example, not a part of kvatlas. Each replica is a worker
of the index under its replica's unique id: see `Engine` in app.py, which registers its engine so.
"""

import logging
from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

LOG = logging.getLogger("ray.serve")


class KvatlasRouter(RequestRouter):  # type: ignore[misc] # Ray is not installed where types are checked
    """Ranks the replicas for each chat: first the one where it does the least harm, then the others by their load."""

    def initialize_state(self, url: str, model: str, tokenizer: str, timeout: float = 0.5) -> None:
        """Ray's hook: `request_router_kwargs` of the deployment.

        Args:
            url: A `kvatlas serve`.
            model: The model that the engines serve.
            tokenizer: The directory of its tokenizer.
            timeout: Seconds within which the index must answer; if it does not, load alone counts.
        """
        # Ray pickles this class by value, so nothing native may be imported beside it.
        from kvatlas import AsyncClient  # noqa: PLC0415
        from kvatlas.routing import Decision, Router  # noqa: PLC0415
        from kvatlas.tokenize import LocalTokenizer  # noqa: PLC0415

        self._client, self._model = AsyncClient(url, timeout=timeout), model
        self._tokenizer = LocalTokenizer(tokenizer)
        self._core = Router(settings={"queue_limit": 0})  # the policy may not wait: Ray has a queue of its own
        self._decisions: dict[str, Decision] = {}
        self.counts: Counter[str] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ray's hook: ranks of replicas, the best first."""
        by_load = sorted(candidate_replicas, key=lambda each: self.replica_queue_len_cache.get(each.replica_id) or 0)
        body = pending_request and body_of(pending_request)
        if pending_request is None or not body:
            return [by_load]
        number = pending_request.metadata.internal_request_id
        self._give_up(number)  # the replica that was chosen before has no room
        replicas = {each.replica_id.unique_id: each for each in candidate_replicas}
        try:
            tokens = self._tokenizer.encode_chat(body["messages"], tools=body.get("tools"))
            found = await self._client.query(tokens=tokens, model=self._model, salt=body.get("cache_salt"))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the index, requests go on
            self.counts[type(error).__name__] += 1
            LOG.warning("kvatlas was not asked: %s", error)
            return [by_load]
        known = dict(self._core.workers)
        for name in replicas.keys() - known.keys():
            self._core.add_worker(name)
        decision = self._core.choose(
            tokens=tokens,
            match=found,
            salt=body.get("cache_salt"),
            max_tokens=body.get("max_tokens"),
            allowed=list(replicas),
        )
        if decision.worker is None:
            return [by_load]
        self._decisions[number] = decision
        self.counts[decision.why] += 1
        best = replicas[decision.worker]
        return [[best], [each for each in by_load if each is not best]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Ray's hook: the replica that took a request, which may not be the best one."""
        number = pending_request.metadata.internal_request_id
        if number in self._decisions and self._decisions[number].worker != replica_id.unique_id:
            self._give_up(number)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Ray's hook: the end of a request."""
        if decision := self._decisions.pop(internal_request_id, None):
            decision.finish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Ray's hook: a replica is gone."""
        super().on_replica_actor_died(replica_id)
        self._core.remove_worker(replica_id.unique_id)

    def _give_up(self, number: str) -> None:
        if decision := self._decisions.pop(number, None):
            decision.failed()


def body_of(pending: PendingRequest) -> dict[str, Any] | None:
    """The body of a chat among a call's arguments: a dict, or what `ray.serve.llm` makes of one."""
    for argument in (*pending.args, *pending.kwargs.values()):
        body = argument.model_dump(exclude_none=True) if hasattr(argument, "model_dump") else argument
        if isinstance(body, dict) and body.get("messages"):
            return body
    return None
