"""Sources of engines: each lists engines that may change while it runs.

`base` is what they have in common. `files` reads the engines' file again, `names` the addresses of a name, and `pods`
follows the pods of a cluster, `pool` those of an InferencePool: both are `watched`, `kubernetes` asks the API server,
`account` has the address and the credentials, and `pod` is what becomes of one pod. `objectives` lists priorities
instead of engines; `deletion_costs` tells the cluster which pods would be missed least.
"""
