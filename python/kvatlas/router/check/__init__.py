"""Tests of each engine that a router uses, with findings and advice.

`check` tests the conditions on which the router relies: that each engine answers, serves known models, publishes its
events, and that prompts become the same tokens in router and engine. Then it sends one small prompt twice, and tests
that the index contains the prompt and the engine found it in its cache. If so, engine and router agree on everything in
between.

`findings` has the report, `ask` the requests, `look` the first questions, `tokens` and `agents` the comparison of
tokens, `round_trip` the prompt's way through an engine, `handover` the way from a prefill to a decode engine.
"""

from kvatlas.router.check.check import check
from kvatlas.router.check.findings import EngineReport, Finding

__all__ = ["EngineReport", "Finding", "check"]
