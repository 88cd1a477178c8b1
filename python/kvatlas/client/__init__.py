"""Clients of the service, typed: `Client` waits, `AsyncClient` is awaited.

from kvatlas.client import Client

with Client("http://127.0.0.1:8090") as client:
    answer = client.query(tokens, model="my-model")
    if answer.best:
        print(answer.best.worker, answer.best.tokens)
"""

from kvatlas.client.aio import AsyncClient
from kvatlas.client.answers import (
    Answer,
    BatchAnswer,
    KeyspaceDump,
    Level,
    RankDepth,
    Readiness,
    Stored,
    StreamStatus,
    Untrusted,
    WorkerDepth,
    WorkerStatus,
)
from kvatlas.client.requests import DEFAULT_URL, Query
from kvatlas.client.sync import Client

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AsyncClient",
    "BatchAnswer",
    "Client",
    "KeyspaceDump",
    "Level",
    "Query",
    "RankDepth",
    "Readiness",
    "Stored",
    "StreamStatus",
    "Untrusted",
    "WorkerDepth",
    "WorkerStatus",
]
