"""Capacity planning: effects of a larger cache, more or faster engines, or another policy on given traffic."""

from kvatlas.lab.capacity.plan import Bottleneck, CapacityPlan, Row, Variant, make_variants, measure_plan

__all__ = ["Bottleneck", "CapacityPlan", "Row", "Variant", "make_variants", "measure_plan"]
