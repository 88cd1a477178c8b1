"""Load tests: plans, open-loop runs of them, threshold throughput, and how designs grow."""
