"""Routing policies: which engine to send a request to, given the cache and the load of each.

A `Policy` picks an engine for a `Prompt` from the `Load` of each engine and the `Depths` that an index found.
`find_policy` has those in `POLICIES` by name, and loads your own from `module:Class`. A `Dispatcher` puts one to work
and keeps the loads.
"""

from kvatlas._native import Candidates, Decision, RoutedRequest, policy_names
from kvatlas.errors import PolicyError
from kvatlas.routing.affinity import PrefixAffinity
from kvatlas.routing.dispatcher import Dispatched, Dispatcher
from kvatlas.routing.exact import Exact
from kvatlas.routing.loader import POLICIES, PolicyFactory, find_policy
from kvatlas.routing.policy import Depths, Load, Policy, Prompt
from kvatlas.routing.router import ArrayPolicy, Router
from kvatlas.routing.simple import LeastLoaded, Random, RoundRobin

__all__ = [
    "POLICIES",
    "ArrayPolicy",
    "Candidates",
    "Decision",
    "Depths",
    "Dispatched",
    "Dispatcher",
    "Exact",
    "LeastLoaded",
    "Load",
    "Policy",
    "PolicyError",
    "PolicyFactory",
    "PrefixAffinity",
    "Prompt",
    "Random",
    "RoundRobin",
    "RoutedRequest",
    "Router",
    "find_policy",
    "policy_names",
]
