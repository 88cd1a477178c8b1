"""Load: plans, the open-loop replay of them, threshold throughput, and how designs grow."""
