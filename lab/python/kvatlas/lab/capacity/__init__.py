"""The worth of more: what a larger cache, more or faster engines or another policy would give some traffic."""

from kvatlas.lab.capacity.plan import Bottleneck, CapacityPlan, Row, Variant, make_variants, measure_plan

__all__ = ["Bottleneck", "CapacityPlan", "Row", "Variant", "make_variants", "measure_plan"]
