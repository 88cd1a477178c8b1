"""Four data structures that are already in use for routing or paging, under their known names and methods.

`StringTree` and `TokenTree` remember what a router sent to whom. `RadixTrie` finds the pages that a prompt can use
inside one engine. `SyncPrefixHashTable` keeps which pod has what share of a prompt, by engines' events or a router's
decisions. Who holds which blocks in a fleet, exactly and right now, is `kvatlas.BlockIndex`. docs/trees says which
to take when.
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
