"""Four known data structures for routing or paging, with their usual names and methods.

`StringTree` and `TokenTree` record which prompts a router sent to which worker. `RadixTrie` finds the pages that a
prompt can use inside one engine. `SyncPrefixHashTable` records how much of a prompt each pod has, from engines' events
or a router's decisions. To find exactly which worker holds which blocks at this moment, use `kvatlas.BlockIndex`.
"""

from kvatlas._native import (
    GLOBAL_EVICTION_HASH,
    RadixTrie,
    StringTree,
    TokenTree,
    TreeDepths,
    TreeMatch,
    TrieNode,
    hash_node_path,
    hash_token_path,
)
from kvatlas.trees.prefix_table import AllBlocksCleared, BlockRemoved, BlockStored, SyncPrefixHashTable

__all__ = [
    "GLOBAL_EVICTION_HASH",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "RadixTrie",
    "StringTree",
    "SyncPrefixHashTable",
    "TokenTree",
    "TreeDepths",
    "TreeMatch",
    "TrieNode",
    "hash_node_path",
    "hash_token_path",
]
