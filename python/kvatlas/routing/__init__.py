"""Choice of the engine for a request, given the cache and the load of each engine.

`Router` chooses and reserves in one step, and keeps track of load. `policy_names` lists the policies that come with
kvatlas; a user's policy is a class with `choose(request, candidates)` (`ArrayPolicy`), named as `module:Class`.
"""

from kvatlas._native import Candidates, Decision, RoutedRequest, policy_names
from kvatlas.errors import PolicyError
from kvatlas.routing.depths import Depths
from kvatlas.routing.router import ArrayPolicy, Router

__all__ = [
    "ArrayPolicy",
    "Candidates",
    "Decision",
    "Depths",
    "PolicyError",
    "RoutedRequest",
    "Router",
    "policy_names",
]
