"""Tests each engine, and says what is wrong and what to change.

`check` asks each engine what the router relies on: that it answers, which models it has, where its events are, whether
prompts become the same tokens here as there. Then it sends one small prompt twice, and tests whether the index then
holds it and the engine found it in its cache. If so, engine and router agree on everything in between.

`findings` has what is reported, `ask` the questions, `tokens` and `agents` the comparison, `round_trip` the prompt's
way, `handover` that from a prefill to a decode engine.
"""

from kvatlas.router.check.check import check
from kvatlas.router.check.findings import EngineReport, Finding

__all__ = ["EngineReport", "Finding", "check"]
