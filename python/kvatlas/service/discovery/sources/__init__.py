"""Sources of engines: each lists engines that may change while it runs.

`base` has the common interface. `files` reads the engines' file again, `names` the addresses of a host name, and
`pods` watches the pods of a cluster, `pool` those of an InferencePool: both are `watched`, `kubernetes` sends requests
to the API server, `account` has the address and the credentials, and `pod` finds the engines of one pod. `objectives`
lists priorities instead of engines; `deletion_costs` tells the cluster which pods hold the fewest blocks that no other
pod has.
"""
