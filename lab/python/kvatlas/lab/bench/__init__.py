"""Load tests of index designs: plans, open-loop runs of plans, threshold throughput, and growth of lookup times."""
