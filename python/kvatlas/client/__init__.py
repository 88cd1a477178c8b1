"""Typed clients of the service: `Client` blocks, `AsyncClient` is for asyncio.

from kvatlas.client import Client

with Client("http://127.0.0.1:8090") as client:
    answer = client.query(tokens=tokens, model="my-model")
    for worker, blocks in answer.best():
        print(worker, blocks)
"""

from kvatlas.client.aio import AsyncClient
from kvatlas.client.answers import (
    Answer,
    BatchAnswer,
    EngineCondition,
    EngineStatus,
    KeyspaceDump,
    RankDepth,
    RankMatch,
    Readiness,
    Stored,
    StreamStatus,
    UntrustedRank,
    WorkerDepth,
    WorkerStatus,
)
from kvatlas.client.prompts import Query
from kvatlas.client.requests import DEFAULT_URL
from kvatlas.client.sites import SitesAnswer, SitesLevel, SiteStatus
from kvatlas.client.sync import Client

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AsyncClient",
    "BatchAnswer",
    "Client",
    "EngineCondition",
    "EngineStatus",
    "KeyspaceDump",
    "Query",
    "RankDepth",
    "RankMatch",
    "Readiness",
    "SiteStatus",
    "SitesAnswer",
    "SitesLevel",
    "Stored",
    "StreamStatus",
    "UntrustedRank",
    "WorkerDepth",
    "WorkerStatus",
]
