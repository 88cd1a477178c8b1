from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Final, Literal, Protocol, Self, SupportsIndex, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

from kvatlas.events import Event, Store
from kvatlas.types import (
    Counts,
    Dialect,
    EvictionPolicy,
    IndexStats,
    Layout,
    Loadable,
    PrefixTableStats,
    RungStats,
    Search,
    Tier,
    TreeStats,
)

__all__ = [
    "GLOBAL_EVICTION_HASH",
    "Batch",
    "BlockIndex",
    "Candidates",
    "Cleared",
    "Decision",
    "LoadableIndex",
    "Match",
    "Plan",
    "PositionalIndexer",
    "RadixTrie",
    "RefusedEvent",
    "Removed",
    "RoutedRequest",
    "Router",
    "RouterServer",
    "Rung",
    "RungMatch",
    "Service",
    "SitePublisher",
    "Sites",
    "SitesMatch",
    "Stored",
    "StringEntries",
    "StringTree",
    "SyncPrefixHashTable",
    "Tally",
    "TokenEntries",
    "TokenTree",
    "TreeDepths",
    "TreeMatch",
    "TrieNode",
    "__version__",
    "adopt_sockets",
    "build_profile",
    "compare_snapshots",
    "content_hashes",
    "decode_batch",
    "encode_batch",
    "has_lab",
    "hash_node_path",
    "hash_token_path",
    "keyed_content_hashes",
    "policy_names",
    "prefix_hashes",
    "probe",
    "prompt_tokens",
    "routing_defaults",
    "run_plan",
    "rungs",
    "unused_sockets",
]

_Tokens: TypeAlias = (
    Sequence[SupportsIndex]
    | Sequence[tuple[SupportsIndex, SupportsIndex]]
    | Sequence[Sequence[SupportsIndex]]
    | NDArray[np.integer[Any]]
    | Buffer
)
_FlatTokens: TypeAlias = Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer
_Bytes: TypeAlias = bytes  # where a class has a property of that name
_Key: TypeAlias = tuple[str, SupportsIndex] | tuple[bytes] | bytes | str

__version__: Final[str]
build_profile: Final[str]
has_lab: Final[bool]

@final
class LoadableIndex:
    """The part of an index for the blocks that engines can load from host memory, disks and pools, beyond their device
    memory.

    Its workers have stored blocks on a tier other than their device, or are members of pools. After the leading blocks
    on its device, an engine looks for the prompt's next blocks chunk by chunk (consecutive blocks that are stored and
    loaded together): first in host memory, then on the other tiers, then in pools.
    """
    def set_offloading(
        self,
        worker: str,
        *,
        host_chunk: SupportsIndex | None = None,
        disk_chunk: SupportsIndex | None = None,
        external_chunk: SupportsIndex | None = None,
        resets_keep: bool | None = None,
    ) -> None:
        """Sets how a worker's engine offloads blocks, for all its ranks, including after restarts.

        Args:
            worker: The worker's name, known or not.
            host_chunk: Number of blocks in a chunk of host memory, at least 1; None to infer it from the stores in
                batches.
            disk_chunk: Number of blocks in a chunk on local disks, or None to infer it.
            external_chunk: Number of blocks in a chunk on the tier "external", if it is not a pool, or None to infer
                it.
            resets_keep: True if a reset of the engine's prefix cache keeps offloaded blocks; None if unknown.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A chunk has less than 1 block.
        """
    def add_pool(
        self,
        name: str,
        *,
        members: Iterable[str] | None = None,
        chunk: SupportsIndex | None = None,
        tier: Tier = "external",
        announces_removals: bool = False,
        lifetime: float | None = None,
        room: SupportsIndex | None = None,
        evicts: str = "announced",
        follows_store: bool = False,
        from_beginning: bool = False,
    ) -> None:
        """Adds a pool: a store into which several engines put blocks and from which they load.

        Blocks that members store on the pool's tier from now on are in the pool. An existing pool of the same name gets
        the new settings and keeps its blocks.

        Args:
            name: The pool's name.
            members: Names of the workers that use the pool, known or not; None for all.
            chunk: Number of blocks in a chunk, at least 1; None to infer it from the stores in members' batches.
            tier: The tier in members' events that stands for the pool: "cpu", "disk" or "external".
            announces_removals: True if members announce removals.
            lifetime: Seconds after which a block no longer counts unless announced again; None for no limit.
            room: Capacity of the pool in blocks, at least 1: beyond it, the blocks announced longest ago no longer
                count. None for no limit.
            evicts: "used" if blocks that were loaded or announced longest ago leave it first, as far as loads are
                known; "announced" if loads make no difference.
            follows_store: Whether hold() and release() say what it holds: what members announce then only tells
                what these blocks contain.
            from_beginning: True if engines load from the pool only chunks that continue, without a gap from the
                prompt's beginning, what they find beyond their devices, as LMCache does. Otherwise they continue
                where their devices end.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: chunk or room is less than 1 block, the tier is "gpu" or unknown, the order of
                eviction is unknown, or the lifetime is not positive.
        """
    def set_time(self, seconds: float) -> None:
        """Sets the current time for pools: the time of later stores, and the time at which the age of pools' blocks is
        judged.

        Args:
            seconds: Seconds since an arbitrary moment, the same for all calls.

        Raises:
            InvalidTypeError: seconds is not a number.
            InvalidArgumentError: seconds is not finite.
        """
    def reset(self, worker: str, *, rank: SupportsIndex | None = None) -> None:
        """Records that a worker's engine has reset its prefix cache, without announcing what happened to offloaded
        blocks.

        Removes blocks like BlockIndex.clear(). From then on the worker may hold more blocks in host memory than are
        counted, unless set_offloading() says what its resets do: a reset that keeps offloaded blocks removes only those
        on the device.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank; None means all.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: The rank is out of range.
        """
    def lose(
        self,
        pool: str,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Records that an engine could not load expected blocks from a pool.

        The chunk that ends with the last given block is removed from the pool, and with it the blocks that continue it.

        Args:
            pool: The pool's name.
            tokens: Token ids up to the end of the chunk, as accepted by BlockIndex.find().
            content_hashes: Content hashes of the blocks up to the end of the chunk, as accepted by BlockIndex.find().
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.

        Returns:
            int: The number of blocks removed from the pool.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: For the reasons of BlockIndex.find().
        """
    def keep(self, pool: str, *, block_hashes: Sequence[SupportsIndex | bytes], until: float | None = None) -> int:
        """Records which blocks an inspection of a pool's store has found.

        Blocks of the pool that were announced before the inspection and were not found are removed. Of a chunk, only
        the last block has to be found.

        Args:
            pool: The pool's name.
            block_hashes: The engines' names of the blocks that were found, as accepted by BlockIndex.store().
            until: The time when the inspection began, on the clock of set_time(); None for the time set last.

        Returns:
            int: The number of blocks removed from the pool.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: until is not finite.
        """
    def hold(self, pool: str, *, block_hashes: Sequence[SupportsIndex | bytes]) -> int:
        """Records that a pool's store says that it holds these blocks.

        They count if a member has told what they contain, and otherwise from when one does.

        Args:
            pool: The pool's name.
            block_hashes: The engines' names of the blocks, as BlockIndex.store() takes them.

        Returns:
            int: The number of blocks that are in the pool now and were not before.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
    def release(self, pool: str, *, block_hashes: Sequence[SupportsIndex | bytes]) -> int:
        """Records that a pool's store says that it holds these blocks no more.

        Args:
            pool: The pool's name.
            block_hashes: The engines' names of the blocks, as BlockIndex.store() takes them.

        Returns:
            int: The number of blocks that are gone from the pool.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
    def set_whole(self, pool: str, whole: bool) -> None:
        """Sets whether all removals that a pool's store announced have been seen.

        While they may have not, answers about the pool are not certain.

        Args:
            pool: The pool's name.
            whole: Whether they have.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
    def note_load(
        self,
        pool: str,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        start: SupportsIndex = 0,
        lora: str | None = None,
        salt: str | None = None,
    ) -> int:
        """Records that an engine has loaded blocks of a prompt from a pool.

        A pool that evicts what was used longest ago keeps them longer; others ignore it.

        Args:
            pool: The pool's name.
            tokens: Token ids up to the end of what was loaded, as BlockIndex.find() takes them.
            content_hashes: Content hashes of the blocks up to the end of what was loaded, likewise.
            start: Number of blocks before the first one loaded.
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.

        Returns:
            int: The number of blocks of the pool whose age begins anew.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: As of BlockIndex.find(), or a start below 0.
        """
    def find(
        self,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> list[Loadable]:
        """Finds the leading part of a prompt that each worker has or can load, without computing it.

        Args:
            tokens: Token ids of the prompt, as accepted by BlockIndex.find().
            content_hashes: Content hashes of the prompt's blocks, as accepted by BlockIndex.find().
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.

        Returns:
            list of kvatlas.types.Loadable, one for each rank with offloaded blocks and for members of pools. For other
            ranks, BlockIndex.find() has the full answer.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: For the reasons of BlockIndex.find().
        """

@final
class Match:
    """The depth to which each worker holds a query, at the time of the lookup.

    Returned by BlockIndex.find; later changes to the index do not alter the answer. Workers that do not hold the
    query's first block are left out. Depths count blocks in device memory. `any_tier` counts blocks of all tiers, and
    `within(tier)` blocks of all tiers from "gpu" down to the given one. The class implements kvatlas.types.PrefixMatch.
    """
    @property
    def depth(self) -> int:
        """int: The greatest depth of any worker, in blocks; 0 if no worker holds the first block."""
    @property
    def length(self) -> int:
        """int: The number of blocks in the query. No depth is greater."""
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block."""
    @property
    def unit(self) -> Literal["blocks"]:
        """str: The unit of depths and length: "blocks"."""
    @property
    def any_tier(self) -> Match:
        """Match: The same answer with blocks of any tier counted, equal to within("external").

        A worker's depth with any tier is at least its depth on the device, unless the worker uses one block hash for
        different blocks on the device and on another tier.
        """
    def within(self, tier: Tier) -> Match:
        """The same answer with the blocks of all tiers counted, from "gpu" down to the given one.

        Args:
            tier: The last tier that counts: "gpu", "cpu", "disk" or "external".

        Returns:
            Match

        Raises:
            InvalidTypeError: tier is not a str.
            InvalidArgumentError: The tier is unknown.
        """
    def levels(self) -> list[tuple[int, list[str]]]:
        """The workers grouped by depth.

        Returns:
            list of (depth in blocks, list of workers), deepest first. Each worker is named once, at the depth of its
            best rank.
        """
    def scores(self) -> dict[str, int]:
        """The depth of every worker.

        Returns:
            dict of worker to depth in blocks, the best over its ranks.
        """
    def by_rank(self) -> dict[tuple[str, int], int]:
        """The depth of every rank of every worker.

        Returns:
            dict of (worker, rank) to depth in blocks.
        """
    def best(self, top_k: SupportsIndex = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The workers with the greatest depths.

        Args:
            top_k: Maximum number of workers returned, at least 0.
            among: Consider only these workers, an iterable of str; None for all. Names not in the match are ignored.

        Returns:
            list of (worker, depth in blocks), at most top_k, deepest first; equal depths in no particular order.

        Raises:
            InvalidTypeError: top_k is not an int, or among is not an iterable of str.
            InvalidArgumentError: top_k is negative.
        """

@final
class BlockIndex:
    """An exact index of the cached blocks that each worker holds.

    Given the events that engines announce (store, remove, clear), the index returns for a prompt how many of its
    leading blocks each worker holds at present. Events may come in any order: a block whose parent is missing is kept
    and counts as soon as the chain to the root is complete.

    Any number of threads may look up and change the index at once; lookups never wait. A refused call changes nothing.

    Args:
        block_size: Tokens in a block, at least 1.
        count_copies: True if a block announced n times counts as held until removed n times. False for engines that
            announce a block once, for any number of copies.

    Raises:
        InvalidTypeError: block_size is not an int, or count_copies is not a bool.
        InvalidArgumentError: block_size is less than 1.
    """
    def __new__(cls, block_size: SupportsIndex = 16, count_copies: bool = True) -> BlockIndex: ...
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block."""
    @property
    def count_copies(self) -> bool:
        """bool: True if a block announced n times counts as held until removed n times."""
    @property
    def loading(self) -> LoadableIndex:
        """LoadableIndex: The blocks that engines can load from host memory, disks and pools."""
    def store(
        self,
        worker: str,
        *,
        block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        parent: SupportsIndex | bytes | None = None,
        rank: SupportsIndex = 0,
        tier: Tier = "gpu",
        lora: str | None = None,
        salt: str | None = None,
    ) -> None:
        """Records that a worker has cached consecutive blocks of one chain.

        The first block follows `parent`, every other block the one before it. Exactly one of content_hashes and tokens
        gives the contents of the blocks. If the worker already holds a block under the same name with other content or
        another parent, that block is replaced. A store of no blocks does nothing.

        Args:
            worker: The worker's name. The first store registers it.
            block_hashes: The engine's names of the blocks, shape (n,): a list of ints of any width and sign or of
                bytes, or an integer array.
            content_hashes: Content hashes of the blocks, shape (n,): a uint64 array or a list of ints.
            tokens: Token ids of the blocks, shape (n * block_size,), as accepted by content_hashes().
            parent: The engine's name of the block before the first; None at the beginning of a prompt.
            rank: Data-parallel rank, from 0 to 2**32 - 1.
            tier: Tier of the blocks: "gpu", "cpu", "disk" or "external".
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Lengths that do not match, both or neither of content_hashes and tokens, a
                number out of range, or an unknown tier.
            IndexFullError: The index cannot number any more workers or blocks.
        """
    def remove(
        self,
        worker: str,
        *,
        block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer,
        rank: SupportsIndex = 0,
        tier: Tier = "gpu",
    ) -> None:
        """Records that a worker has evicted one copy of each of the given blocks.

        A block that is not held is counted in stats()["unknown_removals"] and changes nothing else.

        Args:
            worker: The worker's name.
            block_hashes: The engine's names of the blocks, in any order, shape (n,), as accepted by store().
            rank: Data-parallel rank, from 0 to 2**32 - 1.
            tier: Tier of the blocks: "gpu", "cpu", "disk" or "external".

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A rank out of range or an unknown tier.
        """
    def clear(self, worker: str, *, rank: SupportsIndex | None = None, tier: Tier | None = None) -> None:
        """Removes all blocks of a worker, or those of one rank, one tier or both. An unknown worker changes nothing.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank; None means all.
            tier: "gpu", "cpu", "disk" or "external"; None means all.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A rank out of range or an unknown tier.
        """
    def drop(self, worker: str) -> None:
        """Removes a worker and its blocks. Its next store registers it again. An unknown worker changes nothing.

        Args:
            worker: The worker's name.

        Raises:
            InvalidTypeError: worker is not a str.
        """
    def find(
        self,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> Match:
        """Finds how many leading blocks of a prompt each worker holds.

        The prompt is given by exactly one of tokens and content_hashes. While other threads change the index, each
        depth lies between the smallest and the largest true depth of that worker during the call. One exception: if a
        worker announces a block hash for another block than before, the old block may be removed before the new block
        counts.

        Args:
            tokens: Token ids of the prompt, shape (n,), as accepted by content_hashes(). A trailing partial block is
                left out.
            content_hashes: Content hashes of the prompt's blocks, first block first, shape (n,): a uint64 array
                (read in place) or a list of ints.
            lora: Name of the LoRA adapter, with tokens only; None and "" mean none.
            salt: Cache salt, with tokens only; None and "" mean none.

        Returns:
            Match

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Both or neither of tokens and content_hashes, lora or salt with content_hashes, a
                number out of range, or an array of more than one dimension.
        """
    def stats(self) -> IndexStats:
        """Statistics of the contents, the memory and the events applied so far.

        Returns:
            dict of str to int; "bytes" is in bytes, everything else is a count.
        """
    def workers(self) -> dict[str, int]:
        """The registered workers.

        Returns:
            dict of worker to the number of blocks held over all its ranks, sorted by name. A block that is both in
            device memory and offloaded counts twice.
        """
    def dump(self) -> list[Store]:
        """The contents as events. Other threads may use the index during the call; the blocks of each rank are those of
        one moment.

        Returns:
            list of kvatlas.events.Store. Applied to an empty index, they make an equal one. Block hashes are ints from
            0 to 2**64 - 1, a uniform form of the engine's names. The new index still accepts the engine's own names.
        """
    @overload
    def apply(self, events: Iterable[Event], batch: None = None, /, *, rank: None = None) -> None:
        """Applies a list of events, or a batch sent by an engine.

        apply(events) applies the events in order; all are checked before the first is applied. It returns None.

        apply(worker, batch) applies a batch returned by decode_batch(). Data needed for later batches of the rank
        (salts of chains, kinds of cache groups) are kept with the index until clear() or drop(). Events that cannot be
        applied are left out and counted. The call returns a Tally.

        Args:
            events: An iterable of Store, Remove, Clear and Drop of kvatlas.events; or the worker's name.
            batch: A Batch of kvatlas.wire.
            rank: Data-parallel rank, with a batch only; None for the rank in the batch, or 0 if the batch has none.

        Returns:
            None, or kvatlas.wire.Tally.

        Raises:
            InvalidTypeError: An item of events is not an event, or an argument or field has the wrong type.
            InvalidArgumentError: A field that store, remove or clear would refuse, or a rank without a batch.
            IndexFullError: The index cannot number any more workers or blocks; earlier events are applied.
        """
    @overload
    def apply(self, worker: str, batch: Batch, /, *, rank: SupportsIndex | None = None) -> Tally: ...
    def snapshot(self) -> bytes:
        """Writes contents, settings and counts as bytes, for from_snapshot(). Other threads may use the index during
        the call; the blocks of each rank are those of one moment.

        Data that apply(worker, batch) keeps between the batches of a rank are not included.
        """
    @classmethod
    def from_snapshot(cls, snapshot: Buffer) -> BlockIndex:
        """Restores an index from a snapshot.

        Args:
            snapshot: Return value of snapshot(): bytes, or any contiguous buffer with the same bytes.

        Returns:
            A new BlockIndex.

        Raises:
            InvalidTypeError: snapshot is not bytes.
            InvalidArgumentError: snapshot is not a snapshot of an index, has another version, or is truncated or
                altered: code "invalid_snapshot".
        """
    def save(self, path: str | PathLike[str]) -> None:
        """Writes snapshot() to a file, atomically: the file appears only when it is complete.

        Args:
            path: Path of the file; an existing file is replaced.

        Raises:
            OSError: The file cannot be written.
        """
    @classmethod
    def load(cls, path: str | PathLike[str]) -> BlockIndex:
        """Reads an index from a file that save() wrote.

        Args:
            path: Path of the file.

        Returns:
            A new BlockIndex.

        Raises:
            OSError: The file cannot be read.
            InvalidArgumentError: The file is not a snapshot of an index, has another version, or is truncated or
                altered: code "invalid_snapshot".
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class SitePublisher:
    """Makes the digests of one site's index, for a `Sites`.

    A digest lists the prefixes, at every grain-th block of a chain, whose blocks are all on the device of some rank of
    the site. Each digest after the first contains only the prefixes added and removed.

    Args:
        site: The site's name, 1 to 256 bytes in UTF-8.
        grain: Number of blocks between two marks (prefix hashes in the digest) of a chain, at least 1; the same for all
            sites.
        life: A number that no earlier publisher of the same name had; None for the system's time in nanoseconds.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: The name or the grain is invalid.
    """
    def __new__(cls, site: str, *, grain: SupportsIndex = 32, life: SupportsIndex | None = None) -> SitePublisher: ...
    def look(self, index: BlockIndex) -> tuple[int, int]:
        """Reads the changes of the site's index. Changed ranks are copied, in slices of less than a millisecond between
        which the index can be changed.

        Args:
            index: The site's BlockIndex, the same at every call.

        Returns:
            tuple of int and int: the number of ranks in the index, and the number of ranks copied.
        """
    def delta(self) -> bytes:
        """Makes the next digest, of the changes since the last one. Without changes, the digest shows that the site is
        alive.
        """
    def whole(self) -> bytes:
        """Makes a digest of all marks (prefix hashes) of the site, for a receiver that has missed a digest."""
    @property
    def marks(self) -> int:
        """int: The number of marks of the site: prefix hashes, one for every grain-th block of a chain."""
    @property
    def nbytes(self) -> int:
        """int: Approximate memory of the publisher beside the index, in bytes."""

@final
class Sites:
    """A sparse index of many sites, made from their digests: bounds on how much of a prompt each site holds.

    Args:
        block_size: Number of tokens in a block, at least 1.
        grain: Number of blocks between two marks (prefix hashes in digests) of a chain, equal to the grain of the
            sites' publishers.
        stale_after: Seconds without a digest after which a site's holdings count as unknown.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A number is out of range.
    """
    def __new__(
        cls, block_size: SupportsIndex = 16, *, grain: SupportsIndex = 32, stale_after: float = 30.0
    ) -> Sites: ...
    def apply(self, digest: Buffer, *, now: float | None = None) -> bool:
        """Applies a digest of a site.

        Args:
            digest: Return value of delta() or whole() of a SitePublisher.
            now: Seconds since an arbitrary moment, the same for all calls; None for the time since this index was
                created.

        Returns:
            bool: False if the digest was applied before.

        Raises:
            InvalidTypeError: digest is not bytes.
            InvalidArgumentError: digest is not a digest (code "invalid_digest"), has another grain ("other_grain"), or
                an earlier one is missing ("whole_wanted"): the site's holdings are unknown until a digest of whole()
                comes.
        """
    def find(
        self,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        lora: str | None = None,
        salt: str | None = None,
        now: float | None = None,
    ) -> SitesMatch:
        """Finds bounds on how much of a prompt each site holds.

        Args:
            tokens: Token ids of the prompt, shape (n,), as accepted by content_hashes().
            content_hashes: Content hashes of the prompt's blocks instead, shape (n,): a uint64 array or a list of ints.
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.
            now: The time, as in apply().

        Returns:
            SitesMatch

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Both or neither of tokens and content_hashes, or lora or salt with content_hashes.
        """
    def compare(
        self,
        site: str,
        *,
        at_least: SupportsIndex,
        at_most: SupportsIndex,
        was: SupportsIndex,
        by_engine: bool = False,
    ) -> bool:
        """Compares the bounds of a site with its true holdings, as learnt by asking it, to adjust the trust in its
        digests.

        Args:
            site: The site's name. An unknown one changes nothing.
            at_least: The lower bound from the site's digest, in blocks.
            at_most: The upper bound from the site's digest, in blocks.
            was: The true depth at the site, in blocks.
            by_engine: True if the depth is from an engine's answer to the request, False if from the site's index.

        Returns:
            bool: True if the site is known.
        """
    def forget(self, site: str) -> bool:
        """Removes a site from the index.

        Args:
            site: The site's name.

        Returns:
            bool: True if the site was known.
        """
    def sites(self, *, now: float | None = None) -> list[dict[str, Any]]:
        """Returns the state of each site.

        Args:
            now: The time, as in apply().

        Returns:
            list of dict, by name: "site", "state" ("known", "unknown" or "doubted"), "age" in seconds, "life", "seq",
            "marks", "bytes" of its digests, "trust" from 0 to 1, and numbers of bounds "compared" with the truth and of
            those found "short".
        """
    def stats(self) -> dict[str, int]:
        """Sizes and counts of the index of sites.

        Returns:
            dict of str to int; "bytes" is memory in bytes, everything else is a count.
        """

@final
class SitesMatch:
    """Bounds on how much of a prompt each site holds, returned by Sites.find. All numbers count blocks."""
    @property
    def levels(self) -> list[tuple[int, int, list[str]]]:
        """list[tuple[int, int, list[str]]]: Lower bound, upper bound, and the names of the sites with these bounds;
        highest first.
        """
    @property
    def rest_at_most(self) -> int:
        """int: Upper bound for each site that is neither in levels nor in unknown."""
    @property
    def unknown(self) -> list[str]:
        """list[str]: Sites with unknown holdings: without a digest for too long, or with low trust."""
    @property
    def probe(self) -> tuple[str, int] | None:
        """tuple[str, int] | None: A site with low trust to ask about the prompt, to test whether its digests are right
        again, and its bound in blocks.
        """
    @property
    def length(self) -> int:
        """int: The number of blocks in the prompt."""

@final
class Stored:
    """An event by which an engine announces that it cached consecutive blocks of one chain, one copy of each.

    Args:
        block_hashes: The engine's names of the blocks, parents first: ints of 64 bits, signed or unsigned, or bytes.
        parent: The name of the block before the first; None at the beginning of a prompt.
        tokens: The tokens of the blocks, as accepted by content_hashes(), or a list of pairs from an engine with
            speculative decoding that sends pairs.
        block_size: Tokens in a block; 0 where blocks are announced by name alone.
        tier: Tier of the blocks: "gpu", "cpu", "disk" or "external". Derived from medium if given.
        medium: The engine's name of the tier; None for the usual name.
        lora: The name of the LoRA adapter.
        salt: The cache salt, if the event contains it. vLLM sends it with the first block of a prompt only.
        extra_keys: For each block None, or a sequence of keys for contents other than tokens. A key is (identifier,
            offset) for an image or the like, bytes for a digest of prompt embeddings, a str of unknown meaning, or a
            tuple of one bytes with the MessagePack of anything else.
        group_idx: The number of the KV cache group, as vLLM calls it.
        kind: The kind of attention of the group's layers.
        window: The window of a sliding-window group, in tokens.
        session_id: The id of the session whose request stored the blocks.
        lora_id: The engine's own number for the adapter.
        locality: "LOCAL" or "REMOTE", of an offloaded block. Remote blocks have the tier "external".
        ownership: The secondary offload tier that has the block.
        lookahead: For each block the tokens after it, if the engine's block hashes depend on them.
        reused: True if the blocks were cache hits and not written, so that their number of copies did not increase.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A number is out of range, or the tier is unknown or contradicts the medium.
    """
    def __new__(
        cls,
        block_hashes: Iterable[SupportsIndex | bytes],
        parent: SupportsIndex | bytes | None,
        tokens: _Tokens,
        block_size: SupportsIndex,
        *,
        tier: Tier = "gpu",
        medium: str | None = None,
        lora: str | None = None,
        salt: str | None = None,
        extra_keys: Iterable[Iterable[_Key] | None] | None = None,
        group_idx: SupportsIndex | None = None,
        kind: str | None = None,
        window: SupportsIndex | None = None,
        session_id: str | None = None,
        lora_id: SupportsIndex | None = None,
        locality: str | None = None,
        ownership: str | None = None,
        lookahead: Iterable[Sequence[SupportsIndex]] | None = None,
        reused: bool = False,
    ) -> Stored: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def block_hashes(self) -> tuple[int | bytes, ...]:
        """tuple of int or bytes: The engine's names of the blocks, parents first."""
    @property
    def parent(self) -> int | bytes | None:
        """int, bytes or None: The name of the block before the first."""
    @property
    def tokens(self) -> tuple[int, ...] | tuple[tuple[int, int], ...]:
        """tuple of int, or of pairs of int: The tokens of the blocks."""
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block; 0 if blocks are announced without tokens."""
    @property
    def tier(self) -> Tier:
        """str: The tier that the blocks are in."""
    @property
    def medium(self) -> str | None:
        """str or None: The engine's name of the tier."""
    @property
    def lora(self) -> str | None:
        """str or None: The name of the LoRA adapter."""
    @property
    def lora_id(self) -> int | None:
        """int or None: The engine's own number for the adapter."""
    @property
    def salt(self) -> str | None:
        """str or None: The cache salt, if the event contains it."""
    @property
    def extra_keys(self) -> tuple[tuple[tuple[str, int] | bytes | str | tuple[bytes], ...] | None, ...] | None:
        """tuple or None: For each block None, or a tuple of keys for contents other than tokens, such as images."""
    @property
    def group_idx(self) -> int | None:
        """int or None: The number of the KV cache group, as vLLM calls it."""
    @property
    def kind(self) -> str | None:
        """str or None: The kind of attention of the cache group's layers."""
    @property
    def window(self) -> int | None:
        """int or None: The window of a sliding-window group, in tokens."""
    @property
    def session_id(self) -> str | None:
        """str or None: The id of the session whose request stored the blocks."""
    @property
    def locality(self) -> str | None:
        """str or None: The locality of an offloaded block, "LOCAL" or "REMOTE"."""
    @property
    def ownership(self) -> str | None:
        """str or None: The secondary offload tier that has the block."""
    @property
    def lookahead(self) -> tuple[tuple[int, ...], ...] | None:
        """tuple of tuple of int, or None: The tokens after each block."""
    @property
    def reused(self) -> bool:
        """bool: True if the blocks were cache hits and not written."""

@final
class Removed:
    """An event by which an engine announces that it evicted blocks, one copy of each.

    Args:
        block_hashes: The engine's names of the blocks, in any order: ints of 64 bits, signed or unsigned, or bytes.
        tier: Tier of the blocks: "gpu", "cpu", "disk" or "external". Derived from medium if given.
        medium: The engine's name of the tier; None for the usual name.
        group_idx: The number of the KV cache group, as vLLM calls it.
        locality: "LOCAL" or "REMOTE", of an offloaded block.
        ownership: The secondary offload tier that had the block.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A number is out of range, or the tier is unknown or contradicts the medium.
    """
    def __new__(
        cls,
        block_hashes: Iterable[SupportsIndex | bytes],
        *,
        tier: Tier = "gpu",
        medium: str | None = None,
        group_idx: SupportsIndex | None = None,
        locality: str | None = None,
        ownership: str | None = None,
    ) -> Removed: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def block_hashes(self) -> tuple[int | bytes, ...]:
        """tuple of int or bytes: The engine's names of the blocks."""
    @property
    def tier(self) -> Tier:
        """str: The tier that the blocks were in."""
    @property
    def medium(self) -> str | None:
        """str or None: The engine's name of the tier."""
    @property
    def group_idx(self) -> int | None:
        """int or None: The number of the KV cache group, as vLLM calls it."""
    @property
    def locality(self) -> str | None:
        """str or None: The locality of an offloaded block, "LOCAL" or "REMOTE"."""
    @property
    def ownership(self) -> str | None:
        """str or None: The secondary offload tier that had the block."""

@final
class Cleared:
    """An event by which an engine announces that a rank has lost all its blocks."""
    def __new__(cls) -> Cleared: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class RefusedEvent:
    """An event of a batch that could not be decoded."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def at(self) -> int:
        """int: The event's index in the batch as sent, from 0."""
    @property
    def events(self) -> int:
        """int: The number of events that could not be decoded: more than one if the following events were lost with
        this one.
        """
    @property
    def reason(self) -> str:
        """str: The reason, a word that is the same in every release."""
    @property
    def detail(self) -> str:
        """str: A description of the error, for people."""

@final
class Batch:
    """The events of one engine step, published in one message, in order. Returned by decode_batch()."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def timestamp(self) -> float:
        """float: The time on the engine's clock when the batch was sent, in seconds."""
    @property
    def rank(self) -> int | None:
        """int or None: The data-parallel rank in the batch; None if the engine sends none."""
    @property
    def events(self) -> tuple[Stored | Removed | Cleared, ...]:
        """tuple of Stored, Removed or Cleared: The events that could be decoded, in order."""
    @property
    def refused(self) -> tuple[RefusedEvent, ...]:
        """tuple of RefusedEvent: The events that could not be decoded."""

@final
class Tally:
    """Counts of the events applied from a batch, returned by BlockIndex.apply(worker, batch)."""

    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __eq__(self, other: object, /) -> bool: ...
    @property
    def events(self) -> int:
        """int: The number of events applied."""
    @property
    def stored_blocks(self) -> int:
        """int: The number of blocks in the applied stores."""
    @property
    def removed_blocks(self) -> int:
        """int: The number of blocks in the applied removals, held or not."""
    @property
    def clears(self) -> int:
        """int: The number of applied clears."""
    @property
    def refused(self) -> dict[str, int]:
        """dict of str to int: The number of events left out by reason, including undecodable events."""
    @property
    def upper_bound(self) -> bool:
        """bool: True if depths of the stream are only upper bounds: the model is hybrid, or the engine's speculative
        decoding looks ahead.
        """

def compare_snapshots(a: str | PathLike[str], b: str | PathLike[str]) -> str:
    """Compares two snapshots of services, block by block.

    Args:
        a: The file of one snapshot.
        b: The file of the other snapshot.

    Returns:
        str: A JSON list with the blocks of each rank in both snapshots, and their differences.

    Raises:
        ServiceError: A file cannot be read.
    """

def decode_batch(payload: Buffer) -> Batch:
    """Decodes a batch of events from a payload: the third frame of an engine's message.

    Accepts messages of vLLM 0.11 to 0.33 and SGLang up to 0.5.23, as maps or as the older arrays. An event that cannot
    be decoded is left out, and listed in the batch's `refused`.

    Args:
        payload: bytes, or any contiguous buffer: a bytearray, a memoryview, a zmq.Frame.

    Returns:
        Batch

    Raises:
        InvalidTypeError: payload is not bytes.
        DecodeError: The payload is not a batch.
    """

def encode_batch(
    events: Iterable[Stored | Removed | Cleared],
    *,
    timestamp: float,
    rank: SupportsIndex | None = 0,
    dialect: Dialect = "vllm",
) -> bytes:
    """Writes the payload of a batch of events, byte for byte as an engine writes it.

    Fields that the engine's format does not have are left out, as the engine does: SGLang has no groups, and vLLM
    shows a salt on the first block of a prompt only.

    Args:
        events: An iterable of Stored, Removed and Cleared.
        timestamp: The engine's clock in seconds.
        rank: Data-parallel rank; None for none.
        dialect: "vllm" or "sglang" for the present format, "vllm-arrays" or "sglang-arrays" for the older one.

    Returns:
        bytes

    Raises:
        InvalidTypeError: An item of events is not an event, or an argument has the wrong type.
        InvalidArgumentError: dialect is unknown, or rank is out of range.
    """

def adopt_sockets() -> list[str]:
    """Takes over the listening sockets that this process was started with (LISTEN_FDS).

    Services and routers started later use the sockets whose addresses are theirs.

    Returns:
        list[str]: The sockets' addresses.

    Raises:
        ServiceError: One of the sockets cannot be used.
    """

def prompt_tokens(tokenizer: str, kind: str, version: str, path: str, body: bytes, /) -> list[int]:
    """The tokens of a request's prompt, as the router computes them for a kind and version of engine.

    Args:
        tokenizer: The directory with tokenizer.json.
        kind: "vllm" or "sglang".
        version: The engine's version; "" if unknown.
        path: The request's path.
        body: The request's body.

    Raises:
        ServiceError: The tokenizer cannot be read, or the request's tokens cannot all be computed.
    """

def keyed_content_hashes(
    tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer,
    block_size: SupportsIndex,
    extra_keys: Iterable[Iterable[_Key] | None],
    lora: str | None = None,
    salt: str | None = None,
) -> NDArray[np.uint64]:
    """Computes the content hash of each full block of tokens, where some blocks have extra keys for images or prompt
    embeddings.

    A block without keys has the same hash as in content_hashes(). The keys of a block follow its tokens as one
    little-endian uint64 each: for an identifier of 64 hexadecimal digits the first 16 of them as a number, for any
    other key an XXH3-64 (the Rust documentation of kvatlas_wire::keys says of what). So a block with an image never
    equals one without an image or with another image.

    Args:
        tokens: Token ids, as accepted by content_hashes().
        block_size: Tokens in a block, at least 1.
        extra_keys: For each full block a sequence of keys, as in Stored, or None.
        lora: Name of the LoRA adapter; None and "" mean none.
        salt: Cache salt; None and "" mean none.

    Returns:
        numpy.ndarray of uint64, shape (n // block_size,), for BlockIndex.find().

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A number is out of range, or there are keys for more blocks than are full.
    """

@final
class RouterServer:
    """The router within this process, for kvatlas.router.Router: settings, engines and answers are JSON.

    If the router embeds an index service, that service handles the events. Calls release the GIL while they wait.

    Args:
        settings_json: The settings, a JSON object.
        policy: An object with choose(request, candidates) -> row; None for the policy named in the settings.
        keeper: A function that makes the changes of the fleet that clients request, called from other threads until the
            router closes. Its argument is a request, its return value the answer, both JSON. None if clients cannot
            change the fleet.

    Raises:
        ServiceError: A setting is invalid, or the router cannot be started.
        PolicyError: The policy is unknown, or has no option of a given name.
    """
    def __new__(
        cls, settings_json: str, policy: object | None = None, keeper: Callable[[str], str] | None = None
    ) -> RouterServer: ...
    @property
    def address(self) -> str:
        """str: The address at which HTTP is served, "host:port"."""
    @property
    def admin_address(self) -> str | None:
        """str or None: The second address of /health, /ready and /metrics, "host:port"; None if there is none."""
    @property
    def follows(self) -> bool:
        """bool: True if this router receives engines' events itself."""
    def set_engine(self, engine_json: str, for_client: bool = False) -> None:
        """Adds an engine. An engine of the same name is replaced.

        Args:
            engine_json: The engine's settings, JSON.
            for_client: True if a client of the router adds the engine. It then cannot replace an engine at another URL,
                gets the key of all engines only if its settings say so, and is refused beyond the maximum number of
                engines.

        Raises:
            ServiceError: The engine is refused.
        """
    def remove_engine(self, name: str) -> None:
        """Removes an engine. Requests that it is processing continue.

        Args:
            name: The engine's name.

        Raises:
            ServiceError: No engine has this name.
        """
    def drain_engine(self, name: str, drained: bool, by_discovery: bool = False) -> None:
        """Stops sending new requests to an engine (drains it), or resumes.

        The operator and discovery decide independently: the engine gets requests again when neither drains it.

        Args:
            name: The engine's name.
            drained: True to stop, False to resume.
            by_discovery: True for a decision of discovery, False for one of the operator.

        Raises:
            ServiceError: No engine has this name.
        """
    def state(self) -> str:
        """The engines and their state.

        Returns:
            str: The answer of the router's GET /workers, JSON.
        """
    def decisions(self, limit: SupportsIndex) -> str:
        """The latest decisions of the router, newest first.

        Args:
            limit: The maximum number of decisions.

        Returns:
            str: The answer of GET /decisions, JSON.
        """
    def register(self, registration_json: str, announced_by: str | None = None) -> bool:
        """Registers a worker's stream of events.

        Args:
            registration_json: The body of the service's POST /register.
            announced_by: Host name or address of the engine that announced the stream; None means the configuration.

        Returns:
            bool: True if the stream is new.

        Raises:
            ServiceError: The registration is refused.
        """
    def check_allowed(self, endpoint: str, announced_by: str) -> None:
        """Checks that streams may connect to an endpoint, by the setting streams.allow.

        Args:
            endpoint: The endpoint, tcp://host:port or ipc://path.
            announced_by: Host name or address of the engine that announced it.

        Raises:
            ServiceError: The endpoint is not allowed or not valid.
        """
    def unregister(self, worker: str, rank: SupportsIndex | None = None) -> int:
        """Ends the event streams of a worker, and drops the blocks that it holds.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank; None means all.

        Returns:
            int: The number of streams that ended.

        Raises:
            ServiceError: The worker is not registered, or has no such rank.
        """
    def change(self, settings_json: str) -> None:
        """Changes the settings that can change without a restart.

        Args:
            settings_json: JSON with the sections http and log.

        Raises:
            ConfigError: A setting is invalid; nothing was changed.
        """
    def reload(self) -> None:
        """Reads the keys and the certificate from their files again.

        Raises:
            ServiceError: A file cannot be read or is invalid. The earlier keys and certificate stay in use.
        """
    def report_engine(self, report_json: str) -> None:
        """Reports the progress of discovery with an engine, or with a configured stream.

        Args:
            report_json: JSON with worker, rank, url, state, code and reason.

        Raises:
            ServiceError: The report is invalid.
        """
    def report_source(self, report_json: str) -> None:
        """Reports the state of a source of engines, from which discovery learns of them.

        Args:
            report_json: JSON with source, state, code, reason, members and counts.

        Raises:
            ServiceError: The report is invalid.
        """
    def forget_engine(self, worker: str, rank: SupportsIndex | None = None) -> bool:
        """Removes an engine, or a configured stream, from the list of engines that the router reports.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank of the stream; None means an engine.

        Returns:
            bool: True if it was reported before.
        """
    def other_block_size(self, worker: str) -> int | None:
        """The block size of most blocks in a worker's events, if it differs from the registered one.

        Args:
            worker: The worker's name.

        Returns:
            int or None: The number of tokens in a block; None if the registered size is right or the size in events is
                unknown.
        """
    def restarted(self) -> list[str]:
        """The workers whose event streams have shown a restart of the engine since the last call.

        Returns:
            list[str]: The workers' names, each once.
        """
    def begin_pool_look(self, pool: str) -> bool:
        """Notes that the keys of a pool's store are being asked for.

        Args:
            pool: The pool's name.

        Returns:
            bool: Whether a pool of this name follows a store here.
        """
    def end_pool_look(self, pool: str, keys: bytes | None, publishes: bool) -> str | None:
        """Applies the keys of a pool's store, as asked for after begin_pool_look().

        Args:
            pool: The pool's name.
            keys: The keys, one in a line; None if they could not be got.
            publishes: Whether the store says that it publishes events.

        Returns:
            str or None: What was found, JSON; None without keys.
        """
    def wants_pool_look(self, pool: str) -> bool:
        """Tells if the keys of a pool's store are needed at once, as events of the store were missed.

        Args:
            pool: The pool's name.

        Returns:
            bool: Whether they are.
        """
    def sole_tokens(self) -> str:
        """Approximate number of cached tokens that only one worker holds, for each worker: these would be lost with it.

        Returns:
            str: JSON with a number by worker; workers whose holdings are uncertain are left out.

        Raises:
            ServiceError: The tokens cannot be counted, or this router receives no events.
        """
    def set_objectives(self, priorities_json: str) -> None:
        """Replaces the objectives of a cluster, which give priorities to the requests that name them.

        Args:
            priorities_json: JSON with the priorities of all objectives by name.

        Raises:
            ServiceError: The JSON is invalid.
        """
    def engines(self) -> str:
        """The engines and configured streams that discovery watches.

        Returns:
            str: The answer of the service's GET /engines, JSON; an empty list without a service.
        """
    def workers(self) -> str:
        """The workers whose events the router receives, and their streams.

        Returns:
            str: The answer of the service's GET /workers, JSON; an empty list without a service.
        """
    def load_snapshot(self, file: str | PathLike[str], url: str) -> int:
        """Loads the snapshot of another service, for which the streams have waited.

        Args:
            file: The snapshot's file.
            url: The URL from which it was fetched.

        Returns:
            int: The number of streams in the snapshot.

        Raises:
            ServiceError: The snapshot cannot be used; the streams begin without it.
        """
    def no_snapshot(self, why: str | None = None) -> None:
        """Lets the streams begin without the snapshot of another service.

        Args:
            why: The reason why there is no snapshot; None without a reason.
        """
    def begin_listing(self, pool: str) -> None:
        """Begins a listing of what is in a pool that LMCache fills, before its first page is asked for.

        Args:
            pool: The pool's name.

        Raises:
            ServiceError: LMCache fills no pool of this name.
        """
    def add_listing_page(self, pool: str, offset: int, limit: int, page: bytes) -> int | None:
        """Takes in a page of a listing.

        Args:
            pool: The pool's name.
            offset: Position of the page's first key.
            limit: Keys that were asked for.
            page: The coordinator's answer.

        Returns:
            int or None: Position of the next page; None if this was the last one.

        Raises:
            ServiceError: The page cannot be used, or there is no such pool or listing.
        """
    def fail_listing(self, pool: str, why: str) -> None:
        """Ends a listing that cannot be completed.

        Args:
            pool: The pool's name.
            why: The error that prevented it.

        Raises:
            ServiceError: LMCache fills no pool of this name.
        """
    def ready(self) -> str | None:
        """Returns the reasons why the router is not ready yet.

        Returns:
            str or None: The reasons, JSON; None if the router is ready.
        """
    def release(self, hold: str) -> bool:
        """Removes one reason for not being ready.

        Args:
            hold: The reason's name.

        Returns:
            bool: True if the router was waiting for this reason.
        """
    def leave(self) -> None:
        """Reports "not ready" from now on, while requests are still answered."""
    def drain(self, timeout: float, delay: float = 0.0) -> bool:
        """Reports "not ready", continues for a delay, then accepts no more connections, finishes open requests, and
        closes.

        Further calls do nothing.

        Args:
            timeout: Time limit in seconds for open requests, at least 0.
            delay: Time in seconds before the listener closes, at least 0.

        Returns:
            bool: False if the time limit passed and requests were cut off.

        Raises:
            InvalidArgumentError: timeout or delay is negative or not a number.
        """
    def close(self) -> None:
        """Closes the router at once. Further calls do nothing."""

@final
class Service:
    """The index service within this process, for kvatlas.Service: settings, registrations and answers are JSON.

    Calls release the GIL while they wait.

    Args:
        settings_json: The settings, a JSON object.

    Raises:
        ServiceError: A setting is invalid, or the service cannot be started.
    """
    def __new__(cls, settings_json: str) -> Service: ...
    @property
    def address(self) -> str:
        """str: The address at which HTTP is served, "host:port"."""
    @property
    def admin_address(self) -> str | None:
        """str or None: The second address of /health, /ready and /metrics, "host:port"; None if there is none."""
    def register(self, registration_json: str, announced_by: str | None = None) -> bool:
        """Registers a worker's stream of events.

        Args:
            registration_json: The body of POST /register.
            announced_by: Host name or address of the engine that announced the stream; None means the configuration.

        Returns:
            bool: True if the stream is new.

        Raises:
            ServiceError: The registration is refused.
        """
    def unregister(self, worker: str, rank: SupportsIndex | None = None) -> int:
        """Ends the event streams of a worker, and drops the blocks that it holds.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank; None means all.

        Returns:
            int: The number of streams that ended.

        Raises:
            ServiceError: The worker is not registered, or has no such rank.
        """
    def check_allowed(self, endpoint: str, announced_by: str) -> None:
        """Checks that streams may connect to an endpoint, by the setting streams.allow.

        Args:
            endpoint: The endpoint, tcp://host:port or ipc://path.
            announced_by: Host name or address of the engine that announced it.

        Raises:
            ServiceError: The endpoint is not allowed or not valid.
        """
    def change(self, settings_json: str) -> None:
        """Changes the settings that can change without a restart.

        Args:
            settings_json: JSON with the sections http and log.

        Raises:
            ServiceError: A setting is invalid; nothing was changed.
        """
    def reload(self) -> None:
        """Reads the keys and the certificate from their files again.

        Raises:
            ServiceError: A file cannot be read or is invalid. The earlier keys and certificate stay in use.
        """
    def report_engine(self, report_json: str) -> None:
        """Reports the progress of discovery with an engine, or with a configured stream.

        Args:
            report_json: JSON with worker, rank, url, state, code and reason.

        Raises:
            ServiceError: The report is invalid.
        """
    def report_source(self, report_json: str) -> None:
        """Reports the state of a source of engines, from which discovery learns of them.

        Args:
            report_json: JSON with source, state, code, reason, members and counts.

        Raises:
            ServiceError: The report is invalid.
        """
    def forget_engine(self, worker: str, rank: SupportsIndex | None = None) -> bool:
        """Stops reporting an engine, or a configured stream.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank of the stream; None means an engine.

        Returns:
            bool: True if it was reported before.
        """
    def other_block_size(self, worker: str) -> int | None:
        """The block size of most blocks in a worker's events, if it differs from the registered one.

        Args:
            worker: The worker's name.

        Returns:
            int or None: The number of tokens in a block; None if the registered size is right or the size in events is
                unknown.
        """
    def restarted(self) -> list[str]:
        """The workers whose event streams have shown a restart of the engine since the last call.

        Returns:
            list[str]: The workers' names, each once.
        """
    def begin_pool_look(self, pool: str) -> bool:
        """Notes that the keys of a pool's store are being asked for.

        Args:
            pool: The pool's name.

        Returns:
            bool: Whether a pool of this name follows a store.
        """
    def end_pool_look(self, pool: str, keys: bytes | None, publishes: bool) -> str | None:
        """Applies the keys of a pool's store, as asked for after begin_pool_look().

        Args:
            pool: The pool's name.
            keys: The keys, one in a line; None if they could not be got.
            publishes: Whether the store says that it publishes events.

        Returns:
            str or None: What was found, JSON; None without keys.
        """
    def wants_pool_look(self, pool: str) -> bool:
        """Tells if the keys of a pool's store are needed at once, as events of the store were missed.

        Args:
            pool: The pool's name.

        Returns:
            bool: Whether they are.
        """
    def engines(self) -> str:
        """The engines and configured streams that discovery watches.

        Returns:
            str: The answer of GET /engines, JSON.
        """
    def workers(self) -> str:
        """The workers and their streams.

        Returns:
            str: The answer of GET /workers, JSON.
        """
    def ready(self) -> str | None:
        """Returns the reasons why the service is not ready yet.

        Returns:
            str or None: The reasons, JSON; None if the service is ready.
        """
    def release(self, hold: str) -> bool:
        """Removes one reason for not being ready.

        Args:
            hold: The reason's name.

        Returns:
            bool: True if the service was waiting for this reason.
        """
    def load_snapshot(self, file: str | PathLike[str], url: str) -> int:
        """Loads the snapshot of another service, for which the streams have waited.

        Args:
            file: The snapshot's file.
            url: The URL from which it was fetched.

        Returns:
            int: The number of streams in the snapshot.

        Raises:
            ServiceError: The snapshot cannot be used; the streams begin without it.
        """
    def no_snapshot(self, why: str | None = None) -> None:
        """Lets the streams begin without the snapshot of another service.

        Args:
            why: The reason why there is no snapshot; None without a reason.
        """
    def begin_listing(self, pool: str) -> None:
        """Begins a listing of what is in a pool that LMCache fills, before its first page is asked for.

        Args:
            pool: The pool's name.

        Raises:
            ServiceError: LMCache fills no pool of this name.
        """
    def add_listing_page(self, pool: str, offset: int, limit: int, page: bytes) -> int | None:
        """Takes in a page of a listing.

        Args:
            pool: The pool's name.
            offset: Position of the page's first key.
            limit: Keys that were asked for.
            page: The coordinator's answer.

        Returns:
            int or None: Position of the next page; None if this was the last one.

        Raises:
            ServiceError: The page cannot be used, or there is no such pool or listing.
        """
    def fail_listing(self, pool: str, why: str) -> None:
        """Ends a listing that cannot be completed.

        Args:
            pool: The pool's name.
            why: The error that prevented it.

        Raises:
            ServiceError: LMCache fills no pool of this name.
        """
    def site_digests(self, site: str, whole: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str, int, bytes]]:
        """Makes a digest of the changes in each keyspace since the last call, for the index above many sites.

        Args:
            site: The name of this site.
            whole: Keyspaces whose whole contents are wanted: pairs of model and routing group.

        Returns:
            list of tuples: model, routing group, block size in tokens, and the digest as bytes.

        Raises:
            ServiceError: The site's name is invalid.
        """
    def sole_tokens(self) -> str:
        """Approximate number of cached tokens that only one worker holds, for each worker: these would be lost with it.

        Returns:
            str: JSON with a number by worker; workers whose holdings are uncertain are left out.

        Raises:
            ServiceError: The tokens cannot be counted.
        """
    def leave(self) -> None:
        """Reports "not ready" from now on, while requests are still answered."""
    def drain(self, timeout: float, delay: float = 0.0) -> bool:
        """Reports "not ready", continues for a delay, then accepts no more connections, finishes open requests, and
        closes.

        Further calls do nothing.

        Args:
            timeout: Time limit in seconds for open requests, at least 0.
            delay: Time in seconds before the listener closes, at least 0.

        Returns:
            bool: False if the time limit passed and requests were cut off.

        Raises:
            InvalidArgumentError: timeout or delay is negative or not a number.
        """
    def close(self) -> None:
        """Closes the service at once. Further calls do nothing."""

def content_hashes(
    tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer,
    block_size: SupportsIndex,
    lora: str | None = None,
    salt: str | None = None,
) -> NDArray[np.uint64]:
    """Computes the content hash of each full block of tokens.

    The hash of a block is XXH3-64 with seed 1337 of its tokens as little-endian uint32s. It does not depend on the
    block's position. LoRA name and salt change the seed, so that prompts with different names or salts never share a
    block.

    Args:
        tokens: Token ids, each from 0 to 2**32 - 1, shape (n,): an array of uint32 or int32 (read in place), of
            uint64 or int64, bytes of little-endian uint32s, or a list of ints.
        block_size: Tokens in a block, at least 1.
        lora: Name of the LoRA adapter; None and "" mean none.
        salt: Cache salt or namespace; None and "" mean none.

    Returns:
        numpy.ndarray of uint64, shape (n // block_size,). A trailing partial block has no hash.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A token is out of range, or block_size is less than 1.
    """

def prefix_hashes(
    content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer,
) -> NDArray[np.uint64]:
    """Computes the prefix hash of each block of a chain that starts at the beginning of a prompt.

    A prefix hash identifies a block together with all blocks before it. The first is the content hash itself. Every
    other one is the XXH3-64 with seed 1337 of two hashes, 16 bytes in little-endian order: the prefix hash before it
    and the block's content hash.

    Args:
        content_hashes: Content hashes of blocks 0 to n - 1, shape (n,): a uint64 array or a list of ints.

    Returns:
        numpy.ndarray of uint64, shape (n,).

    Raises:
        InvalidTypeError: content_hashes is not a uint64 array or a list of ints.
        InvalidArgumentError: A hash is out of range.
    """

@final
class Plan:
    """A plan of a load test: the operations on an index (lookups, stores, removals, clears) and the time of each.

    Plans with equal columns are equal, and have equal files and digests. Columns are copied.

    Args:
        times: Due time of each operation, in ns from the start, never decreasing: a uint64 array, shape (n,).
        kinds: Kind of each operation: 0 lookup, 1 store from the start of a prompt, 2 store after parents[i], 3 remove,
            4 clear: uint8, (n,).
        workers: Worker of each operation, from 0 to worker_count - 1: uint32, (n,).
        starts: Index of each operation's first block: in contents (lookup), in names and contents alike (stores), in
            removed (remove); 0 for a clear: uint64, (n,).
        lengths: Number of blocks of each operation; at least 1 for stores and removals, 0 for a clear: uint32, (n,).
        parents: The block hash that a store continues; 0 unless the kind is 2: uint64, (n,).
        contents: Content hashes: uint64, (m,).
        names: Block hashes: uint64, (m,).
        removed: Block hashes of the evicted blocks: uint64, (k,).
        worker_count: Number of workers.
        block_size: Tokens in a block, at least 1.
        meta: A JSON object that describes the plan's source.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: A column is invalid; the message names it and the operation.
    """
    def __new__(
        cls,
        *,
        times: NDArray[np.uint64],
        kinds: NDArray[np.uint8],
        workers: NDArray[np.uint32],
        starts: NDArray[np.uint64],
        lengths: NDArray[np.uint32],
        parents: NDArray[np.uint64],
        contents: NDArray[np.uint64],
        names: NDArray[np.uint64],
        removed: NDArray[np.uint64],
        worker_count: SupportsIndex,
        block_size: SupportsIndex,
        meta: str = "{}",
    ) -> Plan: ...
    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan to a file, atomically: the file appears only when it is complete.

        Args:
            path: Path of the file; an existing file is replaced.

        Raises:
            OSError: The file cannot be written.
        """
    @staticmethod
    def load(path: str | PathLike[str]) -> Plan:
        """Reads a plan from a file and checks it.

        Args:
            path: Path of a file that save() wrote.

        Returns:
            The plan.

        Raises:
            OSError: The file cannot be read.
            InvalidArgumentError: The file is not a plan, has another version, or is truncated or altered.
        """
    @property
    def digest(self) -> str:
        """str: Digest of the plan, 32 hexadecimal digits. Two plans have the same digest only if all their columns are
        equal.
        """
    @property
    def meta(self) -> str:
        """str: JSON object that describes the plan's source."""
    def facts(self) -> dict[str, int]:
        """The size of the plan.

        Returns:
            Counts by name: ops, lookups, stores, removes, clears, lookup_blocks, stored_blocks, removed_blocks,
            workers, block_size, span_ns.
        """
    def __len__(self) -> int: ...

def probe(plan: Plan, index: str, options_json: str, *, build_seconds: float, lookup_seconds: float) -> str:
    """Builds an index of a design from a plan's events, then times the plan's lookups one by one, without other load.

    Args:
        plan: Events and lookups. Each lookup's worker must hold all blocks that are looked up.
        index: The name of a design in kvatlas.lab.designs.RUNGS.
        options_json: As for run_plan(); options about time have no effect here.
        build_seconds: Time limit for building, in seconds; no lookups are made after a longer build.
        lookup_seconds: Time limit for the lookups, in seconds; the remaining lookups are left out.

    Returns:
        A JSON object: built, build_ns, events, blocks, lookups, service (as in run_plan()'s), wrong, example, clock.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: An option is unknown or impossible, or no design has that name.
    """

def run_plan(plan: Plan, index: object, options_json: str) -> str:
    """Runs a plan of events and lookups against an index, each operation at its planned time (open loop), and returns
    the measurements.

    The call releases the GIL; Ctrl-C ends the run and its threads.

    Args:
        plan: The operations and their times.
        index: The name of a design in kvatlas.lab.designs.RUNGS, or any object with the methods store(worker, parent,
            block_hashes, content_hashes), remove(worker, block_hashes), clear(worker) and find(content_hashes), which
            returns a dict of depths by worker. Workers are ints, hashes lists of ints, parent an int or None. One
            thread calls the first three, each query thread find. If the object has a method holdings() that returns
            pairs of worker and block hash, these are compared too. Errors raised by the object are counted and
            reported; the result is then not ok.
        options_json: Options as a JSON object; window_ns or rate is required.

    Returns:
        The result as a JSON object. Its figures count only if its "ok" is true.

    Raises:
        InvalidTypeError: An argument is of the wrong type, or the object lacks a method.
        InvalidArgumentError: An option is unknown or impossible, or no design has that name.
    """

@final
class RungMatch:
    """The depth to which each worker holds a query, according to the events applied at the time of the lookup.

    Returned by Rung.find; later changes do not alter the answer. Workers that hold none of the query's blocks are left
    out. The class implements kvatlas.types.PrefixMatch.
    """
    @property
    def depth(self) -> int:
        """int: The greatest depth of any worker, in blocks; 0 if no worker holds the first block."""
    @property
    def length(self) -> int:
        """int: The number of blocks in the query. No depth is greater."""
    @property
    def unit(self) -> Literal["blocks"]:
        """str: The unit of depths and length: "blocks"."""
    def levels(self) -> list[tuple[int, list[str]]]:
        """The workers grouped by depth.

        Returns:
            list of (depth in blocks, list of workers), deepest first.
        """
    def scores(self) -> dict[str, int]:
        """The depth of every worker.

        Returns:
            dict of worker to depth in blocks.
        """
    def best(self, top_k: SupportsIndex = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The workers with the greatest depths.

        Args:
            top_k: Maximum number of workers returned, at least 0.
            among: Consider only these workers, an iterable of str; None for all. Names not in the match are ignored.

        Returns:
            list of (worker, depth in blocks), at most top_k, deepest first; equal depths in no particular order.

        Raises:
            InvalidTypeError: top_k is not an int, or among is not an iterable of str.
            InvalidArgumentError: top_k is negative.
        """

@final
class TreeMatch:
    """The tenant with the longest prefix of a query, and the prefix's length. Returned by the match methods of
    StringTree and TokenTree.

    Lengths count the characters of a text (Unicode scalar values) or tokens.
    """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def tenant(self) -> str | None:
        """str or None: The tenant that has held the deepest matched node for longest; None if nothing matched."""
    @property
    def matched(self) -> int:
        """int: The length of the longest prefix that any tenant has."""
    @property
    def input(self) -> int:
        """int: The length of the query."""
    @property
    def paged(self) -> int:
        """int: The length of the query that could have matched: whole pages of tokens, or the whole text."""
    @property
    def hit_ratio(self) -> float:
        """float: The ratio matched / input; 0.0 for an empty input."""
    @property
    def paged_ratio(self) -> float:
        """float: The ratio matched / paged: 1.0 if all whole pages matched; 0.0 for a query without a whole page."""

@final
class TreeDepths:
    """The depth to which each tenant has a prompt. Returned by StringTree.find and TokenTree.find.

    Lengths count characters (Unicode scalar values), or tokens in whole pages; `unit` says which. The class implements
    kvatlas.types.PrefixMatch.
    """
    @property
    def depth(self) -> int:
        """int: The greatest depth of any tenant; 0 if no tenant has a prefix of the prompt."""
    @property
    def length(self) -> int:
        """int: The length of the prompt in whole pages. No depth is greater."""
    @property
    def unit(self) -> Literal["characters", "tokens"]:
        """str: The unit of depths and length: "characters" of a StringTree, "tokens" of a TokenTree."""
    def levels(self) -> list[tuple[int, list[str]]]:
        """The tenants grouped by depth.

        Returns:
            list of (depth, list of tenants by name), deepest first.
        """
    def scores(self) -> dict[str, int]:
        """The depth of every tenant that has a prefix of the prompt.

        Returns:
            dict of tenant to depth, deepest first, equal depths by name.
        """
    def best(self, top_k: SupportsIndex = 1, among: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """The tenants with the greatest depths.

        Args:
            top_k: Maximum number of tenants returned, at least 0.
            among: Consider only these tenants, an iterable of str; None for all. Names not in the answer are ignored.

        Returns:
            list of (tenant, depth), at most top_k, deepest first, equal depths by name.

        Raises:
            InvalidTypeError: top_k is not an int, or among is not an iterable of str.
            InvalidArgumentError: top_k is negative.
        """

@final
class Rung:
    """A running index of one of the designs in kvatlas.lab.designs, with the methods of BlockIndex.

    Changes go through the design's own queue and threads, as they would in a router: store(), remove(), clear() and
    drop() return at once, and find() answers from the changes applied so far. flush() waits for all earlier changes.
    Changes of one worker made by one thread are applied in their order.

    An invalid argument raises an error at once, and changes nothing. Changes that the design refuses later, such as a
    store with an unknown parent in a design that cannot keep it, are counted in stats()["refused"].

    Created by kvatlas.lab.designs.open_rung, which lists the designs and explains each option.

    Args:
        name: The name of the design. With "-strict" appended, strict is true.
        strict: True to correct the design's known errors where possible.
        event_threads: Number of threads that apply events, for designs with a pool of threads; 1 to 1,024.
        jump_size: Number of blocks by which the search of positional designs advances; at least 1.
        shards: Number of shards of "radix-sharded", each with its own thread; 1 to 1,024.
        group_size: Number of workers per group of "grouped", at least 1.
        block_size: Number of tokens in a block, for prompts given as tokens, at least 1.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: The design is unknown or has no strict form, or a number is out of range.
        DesignError: Threads could not be started.
    """
    def __new__(
        cls,
        name: str,
        *,
        strict: bool = False,
        event_threads: SupportsIndex = 1,
        jump_size: SupportsIndex = 32,
        shards: SupportsIndex = 2,
        group_size: SupportsIndex = 64,
        block_size: SupportsIndex = 16,
    ) -> Rung: ...
    @property
    def name(self) -> str:
        """str: The name of the design."""
    @property
    def strict(self) -> bool:
        """bool: True if the design's known errors are corrected where possible."""
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block."""
    @property
    def applied(self) -> int:
        """int: The number of changes applied so far, including those that the design refused."""
    def store(
        self,
        worker: str,
        *,
        block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        parent: SupportsIndex | bytes | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> None:
        """Records that a worker has cached consecutive blocks of one chain: see BlockIndex.store.

        A block announced twice is held once.

        Args:
            worker: The worker's name.
            block_hashes: The engine's names of the blocks, shape (n,): a list of ints of any width and sign or of
                bytes, or an integer array.
            content_hashes: Content hashes of the blocks, shape (n,): a uint64 array or a list of ints.
            tokens: Token ids of the blocks, shape (n * block_size,), as accepted by content_hashes().
            parent: The engine's name of the block before the first; None at the beginning of a prompt.
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Lengths that do not match, both or neither of content_hashes and tokens, or a
                number out of range.
        """
    def remove(
        self, worker: str, *, block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer
    ) -> None:
        """Records that a worker has evicted blocks.

        A block that is not held is counted in stats()["unknown_removals"] and changes nothing else.

        Args:
            worker: The worker's name.
            block_hashes: The engine's names of the blocks, in any order, shape (n,), as accepted by store().

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
    def clear(self, worker: str) -> None:
        """Removes all blocks of a worker. An unknown worker changes nothing.

        Args:
            worker: The worker's name.

        Raises:
            InvalidTypeError: worker is not a str.
        """
    def drop(self, worker: str) -> None:
        """Removes a worker and its blocks. Its next store registers it again. An unknown worker changes nothing.

        Args:
            worker: The worker's name.

        Raises:
            InvalidTypeError: worker is not a str.
        """
    def flush(self) -> None:
        """Waits until all earlier changes have been applied.

        Raises:
            DesignError: An earlier change has made the design unusable.
        """
    def find(
        self,
        *,
        tokens: Sequence[SupportsIndex] | NDArray[np.integer[Any]] | Buffer | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer | None = None,
        lora: str | None = None,
        salt: str | None = None,
    ) -> RungMatch:
        """Finds how many leading blocks of a prompt each worker holds, according to the events applied so far.

        The prompt is given by exactly one of tokens and content_hashes.

        Args:
            tokens: Token ids of the prompt, shape (n,), as accepted by content_hashes(). A trailing partial block is
                left out.
            content_hashes: Content hashes of the prompt's blocks, first block first, shape (n,): a uint64 array
                (read in place) or a list of ints.
            lora: Name of the LoRA adapter, with tokens only; None and "" mean none.
            salt: Cache salt, with tokens only; None and "" mean none.

        Returns:
            RungMatch

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Both or neither of tokens and content_hashes, lora or salt with content_hashes, a
                number out of range, or an array of more than one dimension.
            DesignError: An earlier change has made the design unusable.
        """
    def stats(self) -> RungStats:
        """Statistics of the contents and of the changes so far. Waits for all earlier changes.

        Returns:
            dict of str to int: "workers" (known workers), "blocks" (held by all workers), "entries" (of the design's
            own kind: keys, nodes, positions or runs), "refused" (stores), "unknown_removals" (blocks), and "messages"
            (between the parts of a design with several).

        Raises:
            DesignError: An earlier change has made the design unusable.
        """
    def workers(self) -> dict[str, int]:
        """The workers that hold any blocks. Waits for all earlier changes.

        Returns:
            dict of worker to number of blocks held.

        Raises:
            DesignError: An earlier change has made the design unusable.
        """

@final
class PositionalIndexer:
    """The positional index: a map from (position, content hash) to holders, searched in jumps.

    The design "positional" of kvatlas.lab.designs by itself, without a queue: when a call returns, its change is
    applied; a refused change raises an error. Any number of threads may call at once.
    kvatlas.lab.designs.RUNGS["positional"] describes the wrong results without strict, and those that remain with
    strict.

    Args:
        jump_size: Number of blocks by which the search advances, at least 1.
        search: Action when a jump fails: "jump" checks each position within the jump, "bisect" halves the jump.
        layout: "map" (by position and content hash) or "arrays" (by position, of maps by content hash).
        strict: True to always compare prefix hashes and check for holes.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidArgumentError: jump_size is less than 1, or search or layout is unknown.
    """
    def __new__(
        cls, *, jump_size: SupportsIndex = 32, search: Search = "jump", layout: Layout = "map", strict: bool = False
    ) -> PositionalIndexer: ...
    def apply_stored(
        self,
        worker: str,
        blocks: Iterable[tuple[SupportsIndex | bytes, SupportsIndex]],
        parent: SupportsIndex | bytes | None = None,
    ) -> None:
        """Records that a worker has cached consecutive blocks of one chain.

        Args:
            worker: The worker's name.
            blocks: (block hash, content hash) of each block, a list of pairs.
            parent: The block hash before the first; None at the beginning of a prompt.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A content hash is out of range.
            UnknownParentError: The worker does not hold the parent. Nothing was changed.
        """
    def apply_removed(
        self, worker: str, block_hashes: Sequence[SupportsIndex | bytes] | NDArray[np.integer[Any]] | Buffer
    ) -> None:
        """Records that a worker has evicted blocks. Blocks not held are counted in stats()["unknown_removals"].

        Args:
            worker: The worker's name.
            block_hashes: The engine's names of the blocks, in any order, shape (n,): a list of ints of any width and
                sign or of bytes, or an integer array.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
        """
    def apply_cleared(self, worker: str) -> None:
        """Removes all blocks of a worker. An unknown worker changes nothing.

        Args:
            worker: The worker's name.

        Raises:
            InvalidTypeError: worker is not a str.
        """
    def remove_worker(self, worker: str) -> None:
        """Removes a worker and its blocks. An unknown worker changes nothing.

        Args:
            worker: The worker's name.

        Raises:
            InvalidTypeError: worker is not a str.
        """
    def find_matches(self, content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | Buffer) -> dict[str, int]:
        """Finds how many leading blocks of a prompt each worker holds.

        Args:
            content_hashes: Content hashes of the prompt's blocks, first block first, shape (n,): a uint64 array
                (read in place) or a list of ints.

        Returns:
            dict of worker to depth in blocks; only workers that hold the first block.

        Raises:
            InvalidTypeError: Not a uint64 array or a list of ints.
            InvalidArgumentError: A hash out of range, or an array of more than one dimension.
        """
    def stats(self) -> RungStats:
        """Statistics of the contents and of the changes so far.

        Returns:
            dict of str to int: "workers" (known workers), "blocks" (held by all workers), "entries" (pairs of position
            and content hash), "refused" (stores), "unknown_removals" (blocks), and "messages", always 0.
        """

def rungs() -> list[tuple[str, str, list[str], list[str] | None]]:
    """The index designs implemented in Rust, the simplest first.

    Returns:
        list of (name, description, known errors, errors that remain with strict or None if the design has no strict
            form).
    """

@final
class StringEntries:
    """Iterator over the nodes of a tree, returned by iter_entries(). Threads may share it: each node goes to one
    of them.
    """
    def __iter__(self) -> StringEntries: ...
    def __next__(self) -> tuple[str, list[tuple[str, int]]]: ...

@final
class TokenEntries:
    """Iterator over the nodes of a tree, returned by iter_entries(). Threads may share it: each node goes to one
    of them.
    """
    def __iter__(self) -> TokenEntries: ...
    def __next__(self) -> tuple[list[int], list[tuple[str, int]]]: ...

@final
class StringTree:
    """A radix tree over characters of the texts sent to each tenant, for routers that see text.

    It records which text was sent to which tenant, and finds the longest prefix of a text: an estimate of what
    engines have cached. Characters are Unicode scalar values; nothing is normalized.

    Any number of threads may use it at once. A refused call changes nothing.

    Args:
        policy: Order of eviction: "lru", "lfu", "fifo", "mru", "filo" or "priority".
        budget_bytes: Memory limit of the tree in bytes; None for no limit.

    Raises:
        InvalidTypeError: policy is not a str, or budget_bytes is not an int.
        InvalidArgumentError: policy is unknown, or budget_bytes is negative.
    """
    def __new__(cls, *, policy: EvictionPolicy = "lru", budget_bytes: SupportsIndex | None = None) -> StringTree: ...
    @property
    def policy(self) -> EvictionPolicy:
        """str: The order in which leaves are evicted."""
    @property
    def budget_bytes(self) -> int | None:
        """int or None: The memory limit of the tree in bytes, enforced at the end of every insert. Setting it
        evicts at once everything beyond the limit, from all tenants in the order of the policy.
        """
    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: SupportsIndex | None, /) -> None: ...
    @property
    def total_size(self) -> int:
        """int: The sum of the sizes of all tenants."""
    @property
    def node_count(self) -> int:
        """int: The number of nodes of the tree, without the root."""
    @property
    def bytes(self) -> int:
        """int: The memory of the tree in bytes."""
    def insert_text(self, text: str, tenant: str, *, priority: SupportsIndex = 0) -> None:
        """Records that a prompt was sent to a tenant. Prefixes that the tenant has already are not counted again.

        An empty key, or a key shorter than a page, changes nothing.

        Args:
            text: The prompt.
            tenant: The tenant's name. The first insert makes it known.
            priority: With the policy "priority", nodes of lower priority are evicted first. A node keeps the
                greatest priority of its tenant's inserts that went through it.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a number out of range.
        """
    def insert(self, key: str, tenant: str, *, priority: SupportsIndex = 0) -> None:
        """Records that a prompt was sent to a tenant, under a name common to StringTree and TokenTree."""
    def find(self, *, text: str) -> TreeDepths:
        """Finds the length of a prompt's beginning that each tenant has. This changes nothing, not even times of
        last use.

        Args:
            text: The prompt.

        Returns:
            TreeDepths

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def depths(self, key: str) -> dict[str, int]:
        """Finds the length of a prompt's beginning that each tenant has, like find(...).scores().

        Returns:
            dict of tenant to depth, deepest first, equal depths by name; only tenants that have anything.

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_prefix_with_counts(self, text: str) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt. This counts as a use by the tenant.

        Returns:
            TreeMatch

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def prefix_match(self, text: str) -> str | None:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(key).tenant; None if
        nothing matched.

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_and_insert(self, text: str, tenant: str) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
        prompt for the given tenant, in one call.

        Args:
            text: The prompt.
            tenant: The tenant to insert for.

        Returns:
            TreeMatch: The match before the insert.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_and_insert_with(self, text: str, select: Callable[[TreeMatch], str | None]) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
        prompt for the tenant that `select` chooses, in one call.

        `select` is called once, without a lock: `select` and other threads may use the tree meanwhile. If
        `select` raises an error, the call raises the error and inserts nothing; the match still counts as a
        use.

        Args:
            text: The prompt.
            select: Function of the TreeMatch that returns the tenant to insert for, or None to insert nothing.

        Returns:
            TreeMatch: The match that `select` was given.

        Raises:
            InvalidTypeError: An argument, or what `select` returned, is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def prefix_match_legacy(self, text: str) -> tuple[str, str | None]:
        """Finds the longest prefix as text, and its tenant: an older form of match_prefix_with_counts().

        Returns:
            (the text that matched, the tenant or None)

        Raises:
            InvalidTypeError: text is not a str.
            InvalidArgumentError: A str with a lone surrogate in it.
        """
    def prefix_match_tenant(self, text: str, tenant: str) -> str:
        """Finds the longest prefix of a text that a tenant has. This counts as a use by the tenant.

        Returns:
            str: The leading part of the text that the tenant has; "" if nothing.

        Raises:
            InvalidTypeError: An argument is not a str.
            InvalidArgumentError: A str with a lone surrogate in it.
        """
    def evict_by_tenant(self, tenant: str, max_size: SupportsIndex) -> int:
        """Evicts leaves like evict_tenant(), under the name that the method has in SMG."""
    def tenant_char_size(self, tenant: str) -> int:
        """The size of a tenant: the total length of its edges (pieces of text or tokens between two nodes). 0 for
        an unknown tenant.

        Returns:
            int, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: tenant is not a str.
        """
    def tenant_size(self, tenant: str) -> int:
        """The size of a tenant, under a name common to StringTree and TokenTree."""
    def get_tenant_char_count(self) -> dict[str, int]:
        """The size of every tenant, from counts updated with every change.

        Returns:
            dict of tenant to size, sorted by name.
        """
    def tenant_sizes(self) -> dict[str, int]:
        """The size of every tenant, from counts updated with every change, under a name common to StringTree and
        TokenTree.
        """
    def get_used_size_per_tenant(self) -> dict[str, int]:
        """The size of every tenant, counted by a walk over the whole tree. Equal to the counts updated with every
        change.

        Returns:
            dict of tenant to size, sorted by name.
        """
    def stats(self) -> TreeStats:
        """Statistics of the tree's contents.

        Returns:
            dict of str to int: "tenants", "nodes", "size" over all tenants, "bytes".
        """
    def tenants(self) -> list[str]:
        """The tenants that have any node of the tree.

        Returns:
            list of str, sorted.
        """
    def evict_tenant(self, tenant: str, max_size: SupportsIndex) -> int:
        """Evicts leaves of a tenant, in the order of the policy, until its size is at most max_size.

        Leaves are evicted whole. A leaf is a node of the tenant below which the tenant has no other node. O(log
        n) for each.

        Args:
            tenant: The tenant. An unknown one has nothing to evict.
            max_size: Maximum size, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: max_size is negative.
        """
    def evict_tenant_by_size(self, max_size: SupportsIndex) -> int:
        """Evicts leaves of every tenant larger than max_size, like evict_tenant().

        Args:
            max_size: Maximum size of each tenant, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: max_size is not an int.
            InvalidArgumentError: max_size is negative.
        """
    def evict_to_size(self, max_size: SupportsIndex) -> int:
        """Evicts leaves of all tenants, in the order of the policy, until their total size is at most max_size.

        Args:
            max_size: Maximum total size, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: max_size is not an int.
            InvalidArgumentError: max_size is negative.
        """
    def evict_to_bytes(self, max_bytes: SupportsIndex) -> int:
        """Evicts leaves of all tenants, in the order of the policy, until the tree's memory is at most max_bytes.

        Args:
            max_bytes: Maximum memory of the tree in bytes.

        Returns:
            int: The size of the evicted leaves, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: max_bytes is not an int.
            InvalidArgumentError: max_bytes is negative.
        """
    def evict_by_path_hash(self, path_hash: SupportsIndex, tenant: str | None = None) -> int:
        """Evicts the node whose path from the root has a given hash, and all nodes below it. With the hash,
        another router can name a node in eight bytes. A path that ends inside an edge is not a node and has no
        hash.

        Args:
            path_hash: Hash from hash_node_path() or hash_token_path(); GLOBAL_EVICTION_HASH for all nodes.
            tenant: For this tenant only; None for all.

        Returns:
            int: The size of the evicted nodes, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: path_hash is out of range.
        """
    def remove_tenant(self, tenant: str) -> int:
        """Removes a tenant with all its nodes. An unknown tenant changes nothing. O(nodes of the tenant).

        Returns:
            int: The tenant's size, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: tenant is not a str.
        """
    def clear(self) -> None:
        """Removes all tenants and nodes."""
    def iter_entries(self) -> StringEntries:
        """Iterates over all nodes: parents before children, siblings in the order of their first character or
        page.

        Nodes are produced one by one, not as a snapshot: changes made meanwhile may or may not appear.

        Returns:
            iterator of (path from the root, list of (tenant, time of its last use of the node), sorted by
            name). Times are values of the tree's own counter.
        """
    def snapshot(self) -> _Bytes:
        """Writes the tree as bytes. Equal trees give equal bytes. The budget is not included."""
    @classmethod
    def from_snapshot(cls, snapshot: Buffer, *, budget_bytes: SupportsIndex | None = None) -> StringTree:
        """Restores a tree from a snapshot, with its policy and the times of last use.

        Args:
            snapshot: Return value of snapshot(): bytes, or any contiguous buffer with the same bytes.
            budget_bytes: Memory limit of the tree in bytes; None for no limit.

        Returns:
            A new tree.

        Raises:
            InvalidTypeError: snapshot is not bytes, or budget_bytes is not an int.
            InvalidArgumentError: snapshot is not a snapshot of a tree of this class, or is damaged; or
                budget_bytes is negative.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class TokenTree:
    """A radix tree over pages of the tokens sent to each tenant, for routers that have a tokenizer.

    It records which tokens were sent to which tenant, and finds the longest prefix of a prompt: an estimate of what
    engines have cached. Keys are cut to whole pages, and match in whole pages.

    Any number of threads may use it at once. A refused call changes nothing.

    Args:
        page_size: Number of tokens in a page: a power of two from 1 to 128. Use the block size of the engines.
        policy: Order of eviction: "lru", "lfu", "fifo", "mru", "filo" or "priority".
        budget_bytes: Memory limit of the tree in bytes; None for no limit.

    Raises:
        InvalidTypeError: page_size is not an int, policy is not a str, or budget_bytes is not an int.
        InvalidArgumentError: page_size is not one of these, policy is unknown, or budget_bytes is negative.
    """
    def __new__(
        cls, page_size: SupportsIndex = 16, *, policy: EvictionPolicy = "lru", budget_bytes: SupportsIndex | None = None
    ) -> TokenTree: ...
    @property
    def page_size(self) -> int:
        """int: The number of tokens in a page."""
    @property
    def policy(self) -> EvictionPolicy:
        """str: The order in which leaves are evicted."""
    @property
    def budget_bytes(self) -> int | None:
        """int or None: The memory limit of the tree in bytes, enforced at the end of every insert. Setting it
        evicts at once everything beyond the limit, from all tenants in the order of the policy.
        """
    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: SupportsIndex | None, /) -> None: ...
    @property
    def total_size(self) -> int:
        """int: The sum of the sizes of all tenants."""
    @property
    def node_count(self) -> int:
        """int: The number of nodes of the tree, without the root."""
    @property
    def bytes(self) -> int:
        """int: The memory of the tree in bytes."""
    def insert_tokens(self, tokens: _FlatTokens, tenant: str, *, priority: SupportsIndex = 0) -> None:
        """Records that a prompt was sent to a tenant. Prefixes that the tenant has already are not counted again.

        An empty key, or a key shorter than a page, changes nothing.

        Args:
            tokens: The prompt, shape (n,), as content_hashes() takes tokens.
            tenant: The tenant's name. The first insert makes it known.
            priority: With the policy "priority", nodes of lower priority are evicted first. A node keeps the
                greatest priority of its tenant's inserts that went through it.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a number out of range.
        """
    def insert(self, key: _FlatTokens, tenant: str, *, priority: SupportsIndex = 0) -> None:
        """Records that a prompt was sent to a tenant, under a name common to StringTree and TokenTree."""
    def find(self, *, tokens: _FlatTokens) -> TreeDepths:
        """Finds the length of a prompt's beginning that each tenant has. This changes nothing, not even times of
        last use.

        Args:
            tokens: The prompt, shape (n,), as content_hashes() takes tokens.

        Returns:
            TreeDepths

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def depths(self, key: _FlatTokens) -> dict[str, int]:
        """Finds the length of a prompt's beginning that each tenant has, like find(...).scores().

        Returns:
            dict of tenant to depth, deepest first, equal depths by name; only tenants that have anything.

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_prefix_with_counts(self, tokens: _FlatTokens) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt. This counts as a use by the tenant.

        Returns:
            TreeMatch

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def prefix_match(self, tokens: _FlatTokens) -> str | None:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(key).tenant; None if
        nothing matched.

        Raises:
            InvalidTypeError: The key is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_and_insert(self, tokens: _FlatTokens, tenant: str) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
        prompt for the given tenant, in one call.

        Args:
            tokens: The prompt, shape (n,), as content_hashes() takes tokens.
            tenant: The tenant to insert for.

        Returns:
            TreeMatch: The match before the insert.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def match_and_insert_with(self, tokens: _FlatTokens, select: Callable[[TreeMatch], str | None]) -> TreeMatch:
        """Finds the tenant with the longest prefix of a prompt, like match_prefix_with_counts(), then inserts the
        prompt for the tenant that `select` chooses, in one call.

        `select` is called once, without a lock: `select` and other threads may use the tree meanwhile. If
        `select` raises an error, the call raises the error and inserts nothing; the match still counts as a
        use.

        Args:
            tokens: The prompt, shape (n,), as content_hashes() takes tokens.
            select: Function of the TreeMatch that returns the tenant to insert for, or None to insert nothing.

        Returns:
            TreeMatch: The match that `select` was given.

        Raises:
            InvalidTypeError: An argument, or what `select` returned, is of the wrong type.
            InvalidArgumentError: A str with a lone surrogate in it, or a token out of range.
        """
    def prefix_match_legacy(self, tokens: _FlatTokens) -> tuple[list[int], str | None]:
        """Finds the longest prefix as tokens, and its tenant: an older form of match_prefix_with_counts().

        Returns:
            (list of the tokens that matched, the tenant or None)

        Raises:
            InvalidTypeError: The argument is not tokens.
            InvalidArgumentError: A token out of range, or an array of more than one dimension.
        """
    def prefix_match_tenant(self, tokens: _FlatTokens, tenant: str) -> int:
        """Finds the longest prefix of a prompt that a tenant has. This counts as a use by the tenant.

        Returns:
            int: The number of leading tokens that the tenant has, in whole pages.

        Raises:
            InvalidTypeError: The prompt is not tokens, or tenant is not a str.
            InvalidArgumentError: A token out of range, or an array of more than one dimension.
        """
    def tenant_token_size(self, tenant: str) -> int:
        """The size of a tenant: the total length of its edges (pieces of text or tokens between two nodes). 0 for
        an unknown tenant.

        Returns:
            int, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: tenant is not a str.
        """
    def tenant_size(self, tenant: str) -> int:
        """The size of a tenant, under a name common to StringTree and TokenTree."""
    def get_tenant_token_counts(self) -> dict[str, int]:
        """The size of every tenant, from counts updated with every change.

        Returns:
            dict of tenant to size, sorted by name.
        """
    def tenant_sizes(self) -> dict[str, int]:
        """The size of every tenant, from counts updated with every change, under a name common to StringTree and
        TokenTree.
        """
    def get_used_size_per_tenant(self) -> dict[str, int]:
        """The size of every tenant, counted by a walk over the whole tree. Equal to the counts updated with every
        change.

        Returns:
            dict of tenant to size, sorted by name.
        """
    def stats(self) -> TreeStats:
        """Statistics of the tree's contents.

        Returns:
            dict of str to int: "tenants", "nodes", "size" over all tenants, "bytes".
        """
    def tenants(self) -> list[str]:
        """The tenants that have any node of the tree.

        Returns:
            list of str, sorted.
        """
    def evict_tenant(self, tenant: str, max_size: SupportsIndex) -> int:
        """Evicts leaves of a tenant, in the order of the policy, until its size is at most max_size.

        Leaves are evicted whole. A leaf is a node of the tenant below which the tenant has no other node. O(log
        n) for each.

        Args:
            tenant: The tenant. An unknown one has nothing to evict.
            max_size: Maximum size, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: max_size is negative.
        """
    def evict_tenant_by_size(self, max_size: SupportsIndex) -> int:
        """Evicts leaves of every tenant larger than max_size, like evict_tenant().

        Args:
            max_size: Maximum size of each tenant, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: max_size is not an int.
            InvalidArgumentError: max_size is negative.
        """
    def evict_to_size(self, max_size: SupportsIndex) -> int:
        """Evicts leaves of all tenants, in the order of the policy, until their total size is at most max_size.

        Args:
            max_size: Maximum total size, in characters of a StringTree, in tokens of a TokenTree.

        Returns:
            int: The size of the evicted leaves, in the same units.

        Raises:
            InvalidTypeError: max_size is not an int.
            InvalidArgumentError: max_size is negative.
        """
    def evict_to_bytes(self, max_bytes: SupportsIndex) -> int:
        """Evicts leaves of all tenants, in the order of the policy, until the tree's memory is at most max_bytes.

        Args:
            max_bytes: Maximum memory of the tree in bytes.

        Returns:
            int: The size of the evicted leaves, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: max_bytes is not an int.
            InvalidArgumentError: max_bytes is negative.
        """
    def evict_by_path_hash(self, path_hash: SupportsIndex, tenant: str | None = None) -> int:
        """Evicts the node whose path from the root has a given hash, and all nodes below it. With the hash,
        another router can name a node in eight bytes. A path that ends inside an edge is not a node and has no
        hash.

        Args:
            path_hash: Hash from hash_node_path() or hash_token_path(); GLOBAL_EVICTION_HASH for all nodes.
            tenant: For this tenant only; None for all.

        Returns:
            int: The size of the evicted nodes, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: path_hash is out of range.
        """
    def remove_tenant(self, tenant: str) -> int:
        """Removes a tenant with all its nodes. An unknown tenant changes nothing. O(nodes of the tenant).

        Returns:
            int: The tenant's size, in characters of a StringTree, in tokens of a TokenTree.

        Raises:
            InvalidTypeError: tenant is not a str.
        """
    def clear(self) -> None:
        """Removes all tenants and nodes."""
    def iter_entries(self) -> TokenEntries:
        """Iterates over all nodes: parents before children, siblings in the order of their first character or
        page.

        Nodes are produced one by one, not as a snapshot: changes made meanwhile may or may not appear.

        Returns:
            iterator of (path from the root, list of (tenant, time of its last use of the node), sorted by
            name). Times are values of the tree's own counter.
        """
    def snapshot(self) -> _Bytes:
        """Writes the tree as bytes. Equal trees give equal bytes. The budget is not included."""
    @classmethod
    def from_snapshot(cls, snapshot: Buffer, *, budget_bytes: SupportsIndex | None = None) -> TokenTree:
        """Restores a tree from a snapshot, with its policy and the times of last use.

        Args:
            snapshot: Return value of snapshot(): bytes, or any contiguous buffer with the same bytes.
            budget_bytes: Memory limit of the tree in bytes; None for no limit.

        Returns:
            A new tree.

        Raises:
            InvalidTypeError: snapshot is not bytes, or budget_bytes is not an int.
            InvalidArgumentError: snapshot is not a snapshot of a tree of this class, or is damaged; or
                budget_bytes is negative.
        """
    def __reduce__(self) -> tuple[Any, ...]: ...

GLOBAL_EVICTION_HASH: Final[int]

def hash_node_path(text: str) -> int:
    """Computes the hash of the node at which a text ends: the first 8 bytes of BLAKE3 of its UTF-8, little-endian, with
    0 replaced by 1.

    Args:
        text: The whole text from the root to the node.

    Returns:
        int, from 1 to 2**64 - 1. Never GLOBAL_EVICTION_HASH.

    Raises:
        InvalidTypeError: Not a str.
        InvalidArgumentError: A str with a lone surrogate in it.
    """

def hash_token_path(tokens: _FlatTokens) -> int:
    """Computes the hash of the node at which a sequence of tokens ends, like hash_node_path(), over little-endian
    uint32s.

    Args:
        tokens: All tokens from the root to the node, shape (n,), as accepted by content_hashes().

    Returns:
        int, from 1 to 2**64 - 1. Never GLOBAL_EVICTION_HASH.

    Raises:
        InvalidTypeError: The argument is not tokens.
        InvalidArgumentError: A token out of range, or an array of more than one dimension.
    """

_TrieTokens: TypeAlias = Sequence[SupportsIndex | str] | NDArray[np.integer[Any] | np.str_] | Buffer
_Blocks: TypeAlias = Iterable[Any]

@final
class TrieNode:
    """The end of a cached sequence of tokens, in one RadixTrie.

    Nodes are created by the trie. A node stands for the same end even after the trie has split the path to it. Once the
    end itself is evicted, every call refuses the node (InvalidArgumentError, code "evicted_node"); the node never
    stands for another end. Two nodes are equal if they stand for the same end in the same trie.
    """
    @property
    def tokens(self) -> list[Any]:
        """list: The tokens of the node itself, without those above it. The root has none."""
    @property
    def blocks(self) -> list[Any]:
        """list: The blocks of the node itself, one for each page."""
    @property
    def parent(self) -> TrieNode | None:
        """TrieNode | None: The node above; None for the root."""
    @property
    def children(self) -> dict[tuple[Any, ...], TrieNode]:
        """dict[tuple, TrieNode]: The nodes directly below, by their first page, in the order of insertion."""
    @property
    def active_seqs(self) -> set[int]:
        """set[int]: The sequences that use the node."""
    @property
    def evicted(self) -> bool:
        """bool: True once the end that the node stood for has been evicted. Never raises."""
    def is_root(self) -> bool:
        """Returns True if the node is the root."""
    def is_leaf(self) -> bool:
        """Returns True if the node has no children."""
    def get_prefix_tokens_and_blocks(self) -> tuple[list[Any], list[Any]]:
        """All tokens from the root to the node's end, and their blocks.

        Returns:
            tuple[list, list]: Tokens and blocks.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class RadixTrie:
    """A trie of the cached pages that a prompt can use, for an allocator of paged attention inside an engine.

    A radix trie over whole pages of tokens with one block for each page. Blocks are any values of the caller (slot
    numbers, objects) and are returned as the same objects. Pages in use by a running sequence are marked and stay. The
    others are evicted when blocks are needed: least recently created or released first, from the end, children before
    parents. Matching does not make pages more recent.

    Any number of threads may use a trie at once. A refused call changes nothing.

    Args:
        page_size: Number of tokens in a page, at least 1.

    Raises:
        InvalidTypeError: page_size is not an int.
        InvalidArgumentError: page_size is less than 1.
    """
    def __new__(cls, page_size: SupportsIndex = 1) -> RadixTrie: ...
    @property
    def page_size(self) -> int:
        """int: The number of tokens in a page."""
    @property
    def root(self) -> TrieNode:
        """TrieNode: The node at which every sequence begins."""
    def insert(self, tokens: _TrieTokens, blocks: _Blocks, node: TrieNode | None = None) -> TrieNode:
        """Adds tokens with a block for each page.

        Pages that exist already keep their blocks; the caller's blocks for those pages are not taken (insert_with_count
        returns their number). A new leaf can be evicted until marked. O(tokens).

        Args:
            tokens: Tokens of whole pages, shape (n * page_size,): an integer array, read in place, or a list of ints or
                strs.
            blocks: One block for each page: a list or another iterable.
            node: The node whose end the tokens follow; None for the root.

        Returns:
            TrieNode: The end of the sequence, for inserting what follows and for marking.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: No tokens, tokens that are not whole pages, not one block for each page, or a node
                that was evicted or belongs to another trie.
        """
    def insert_with_count(
        self, tokens: _TrieTokens, blocks: _Blocks, node: TrieNode | None = None
    ) -> tuple[TrieNode, int]:
        """Adds tokens like insert, and also returns the number of pages that existed already.

        Args:
            tokens: Tokens of whole pages, as in insert().
            blocks: One block for each page, as in insert().
            node: The node whose end the tokens follow, as in insert().

        Returns:
            tuple[TrieNode, int]: The end of the sequence, and the number n of pages that existed already. The first n
            of the given blocks were not taken and still belong to the caller.

        Raises:
            InvalidTypeError: For the reasons of insert().
            InvalidArgumentError: For the reasons of insert().
        """
    def match_prefix(self, tokens: _TrieTokens, node: TrieNode | None = None) -> tuple[TrieNode, list[Any]]:
        """Finds the longest cached prefix of tokens, in whole pages.

        A match that ends inside a node splits the node, so that the returned node ends exactly there. Nothing becomes
        more recently used. O(tokens).

        Args:
            tokens: Tokens, at least one. A partial page at the end is ignored.
            node: The node whose end the tokens follow; None for the root.

        Returns:
            tuple[TrieNode, list]: The node at the end of the match (node itself if nothing matches), and the blocks of
            the matched pages, in order.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: No tokens, or a node that was evicted or belongs to another trie.
        """
    def mark_in_use_by(self, node: TrieNode, seq_id: SupportsIndex) -> None:
        """Marks a node and all nodes above it as used by a sequence. They are not evicted until the sequence releases
        them.

        Mark the deepest node as the sequence grows. Marking a node again, or the root, changes nothing. O(nodes up to
        the root).

        Args:
            node: A node of this trie.
            seq_id: The sequence's number, from -2**63 to 2**63 - 1.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A node that was evicted or belongs to another trie, or a number out of range.
        """
    def mark_not_in_use_by(self, node: TrieNode, seq_id: SupportsIndex) -> None:
        """Releases a node and all nodes above it from a sequence. They become the most recently used ones.

        Release once, from the deepest marked node. O(nodes up to the root).

        Args:
            node: A node of this trie.
            seq_id: The sequence's number.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: The sequence does not use the node, the node was evicted or belongs to another trie,
                or a number is out of range.
        """
    def evict_blocks(self, desired_num_evicted: SupportsIndex) -> list[Any]:
        """Removes blocks from the trie and returns them to the caller.

        The least recently created or released leaf not in use is evicted first, from its end; then the next leaf, and
        parents once their children are gone. If only the end of a leaf was needed, the rest of the leaf stays, and
        nodes that stood for its old end are refused from then on. O(evicted * log leaves).

        Args:
            desired_num_evicted: Number of blocks to evict; 0 or less evicts none.

        Returns:
            list: The blocks, leaf by leaf, those of each leaf in the order of their tokens. Fewer than desired if all
            others are in use.

        Raises:
            InvalidTypeError: desired_num_evicted is not an int.
        """
    def get_all_blocks(self) -> set[Any]:
        """All blocks in the trie. O(blocks).

        Returns:
            set: A new set.

        Raises:
            TypeError: A block cannot be hashed.
        """
    def get_evictable_blocks(self) -> set[Any]:
        """The blocks that evict_blocks() could return now. O(nodes).

        Returns:
            set: A new set.

        Raises:
            TypeError: A block cannot be hashed.
        """
    def pretty_format(self, print_blocks: bool = False) -> list[str]:
        """The trie as text: a line for each node, depth first, children in the order of insertion.

        Args:
            print_blocks: True to show the blocks after the tokens.

        Returns:
            list[str]: Two dashes for each level, then the tokens; with print_blocks also " : " and the blocks.
        """
    def pretty_print(self, print_blocks: bool = True) -> None:
        """Prints the text that pretty_format() returns.

        Args:
            print_blocks: True to show the blocks after the tokens.
        """
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

_TokenBytes: TypeAlias = bytes | bytearray | memoryview | Sequence[SupportsIndex] | NDArray[np.integer[Any]]

class _Origin(Protocol):
    @property
    def model_name(self) -> str: ...
    @property
    def lora_id(self) -> int: ...
    @property
    def source_pod(self) -> str: ...

class _Removed(_Origin, Protocol):
    @property
    def block_hashes(self) -> Sequence[int | bytes] | NDArray[np.integer[Any]]: ...

class _Stored(_Removed, Protocol):
    @property
    def parent_block_hash(self) -> int | bytes | None: ...
    @property
    def tokens(self) -> Iterable[_TokenBytes]: ...

class _Cleared(Protocol):
    @property
    def model_name(self) -> str | None: ...
    @property
    def lora_id(self) -> int: ...
    @property
    def source_pod(self) -> str: ...

@final
class SyncPrefixHashTable:
    """A table of the prefixes that each pod holds, by chained hashes of their blocks.

    Each model and LoRA adapter has a context, which maps each prefix hash to the pods that hold the prefix. The table
    is updated from engines' events and from the router's own decisions. A prefix hash is the XXH64, with the table's
    seed, of the prefix hash before it (8 little-endian bytes; the seed if there is none) and the bytes of a block.
    Blocks have block_size bytes, and a token has 4 big-endian bytes.

    Limits are enforced at the end of every call: first the least recently used contexts are evicted, then the prefixes
    unused for longest, of equally old ones the deepest first. A background thread evicts prefixes that were not used
    for eviction_duration; close() or the end of the table stops this thread.

    Any number of threads may use a table at once. A refused call changes nothing.

    Args:
        max_contexts: Maximum number of contexts; AIBRIX_SYNC_MAX_CONTEXTS or 1,000 if None.
        max_prefixes_per_context: Maximum number of prefixes in each; AIBRIX_SYNC_MAX_PREFIXES_PER_CONTEXT or 10,000.
        eviction_interval: Seconds between two checks for expired prefixes; AIBRIX_SYNC_EVICTION_INTERVAL_SECONDS or 60.
        eviction_duration: Seconds after which an unused prefix expires, to a tenth;
            AIBRIX_SYNC_EVICTION_DURATION_MINUTES (minutes there) or 1,200.
        block_size: Bytes of tokens in a block, 4 for each token; AIBRIX_PREFIX_CACHE_BLOCK_SIZE or 16. Engines'
            blocks must be multiples.
        seed: Seed of the prefix hashes, from 0 to 2**64 - 1; a random one if None. Tables with the same seed and
            block_size compute the same prefix hashes.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        ConfigError: An argument or a variable is invalid; the message names it.
    """
    def __new__(
        cls,
        *,
        max_contexts: SupportsIndex | None = None,
        max_prefixes_per_context: SupportsIndex | None = None,
        eviction_interval: float | None = None,
        eviction_duration: float | None = None,
        block_size: SupportsIndex | None = None,
        seed: SupportsIndex | None = None,
    ) -> SyncPrefixHashTable: ...
    @property
    def max_contexts(self) -> int:
        """int: The maximum number of contexts."""
    @property
    def max_prefixes_per_context(self) -> int:
        """int: The maximum number of prefixes per context."""
    @property
    def eviction_interval(self) -> float:
        """float: The seconds between two checks for expired prefixes."""
    @property
    def eviction_duration(self) -> float:
        """float: The seconds after which an unused prefix expires."""
    @property
    def block_size(self) -> int:
        """int: The number of bytes of tokens in a block."""
    @property
    def seed(self) -> int:
        """int: The seed of the prefix hashes."""
    @property
    def closed(self) -> bool:
        """bool: True once close() was called."""
    def get_prefix_hashes(self, tokens: _TokenBytes) -> NDArray[np.uint64]:
        """Computes the prefix hash of each full block of tokens.

        Args:
            tokens: Bytes, 4 in big-endian order for each token, or token ids: an integer array of 32 or 64 bits or a
                list of ints.

        Returns:
            numpy.ndarray of uint64, shape (bytes // block_size,). A part of a block at the end has no hash.

        Raises:
            InvalidTypeError: tokens are of another type.
            InvalidArgumentError: A token is not from 0 to 2**32 - 1.
        """
    def match_prefix(
        self, model: str, lora_id: SupportsIndex, tokens: _TokenBytes, ready_pods: Iterable[str] | None = None
    ) -> tuple[dict[str, int], NDArray[np.uint64]]:
        """Finds the share of a prompt that each ready pod holds, in percent of its full blocks.

        A pod's share ends at the first block that the pod does not hold. It is rounded down, but at least 1; pods
        without the first block are left out. O(blocks), and O(pods) where the set of pods changes.

        Args:
            model: The model's name.
            lora_id: The adapter's number, -1 for none.
            tokens: Tokens, as in get_prefix_hashes().
            ready_pods: The pods to consider: names, or a mapping by name. None means all.

        Returns:
            tuple[dict[str, int], numpy.ndarray]: Percents by pod, and the prompt's prefix hashes, for add_prefix().

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A token or lora_id is out of range.
        """
    def find(self, *, tokens: _TokenBytes, model: str, lora_id: SupportsIndex = -1) -> Counts:
        """Finds the same shares as match_prefix(), as a match in percent like that of other indexes.

        Args:
            tokens: Tokens, as in get_prefix_hashes().
            model: The model's name.
            lora_id: The adapter's number, -1 for none.

        Returns:
            kvatlas.types.Counts: The share of each pod; its unit is "percent" and its length 100.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A token or lora_id is out of range.
        """
    def add_prefix(
        self, model: str, lora_id: SupportsIndex, pod: str, prefix_hashes: Sequence[SupportsIndex] | NDArray[np.uint64]
    ) -> None:
        """Records that the router sent a prompt to a pod, which is then expected to hold the prompt's prefixes.

        The prefixes are removed when the pod's engine removes them, or when they expire.

        Args:
            model: The model's name.
            lora_id: The adapter's number, -1 for none.
            pod: The pod's name.
            prefix_hashes: Prefix hashes from match_prefix() or get_prefix_hashes(): a uint64 array or a list of ints.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: A number is out of range.
        """
    def remove_prefix(self, model: str, lora_id: SupportsIndex, pod: str) -> None:
        """Removes a pod's prefixes for one model and adapter. O(prefixes of the context).

        Args:
            model: The model's name.
            lora_id: The adapter's number, -1 for none.
            pod: The pod's name.

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: lora_id is out of range.
        """
    def process_block_stored(self, event: _Stored) -> int:
        """Records that a pod's engine has cached consecutive blocks, the first of them after the event's parent.

        If the pod announces a block hash again that it has not removed, and the content is the same, this counts as one
        more copy. Otherwise, the block hash stands for the new content from now on.

        Args:
            event: A BlockStored, or anything with its fields.

        Returns:
            int: The number of the event's blocks that are now known: 0 if the pod does not hold the parent, and not all
            if one event has more prefixes than a context may have.

        Raises:
            InvalidTypeError: A field is of the wrong type.
            InvalidArgumentError: Tokens are not one item for each block hash, a block whose tokens are not a multiple
                of block_size bytes, or a number out of range.
        """
    def process_block_removed(self, event: _Removed) -> None:
        """Records that a pod's engine has evicted one copy of each of an event's blocks. Other pods keep their copies.

        Blocks that the pod does not hold are counted in stats()["unknown_removals"] and change nothing.

        Args:
            event: A BlockRemoved, or anything with its fields.

        Raises:
            InvalidTypeError: A field is of the wrong type.
            InvalidArgumentError: A number out of range.
        """
    def process_all_blocks_cleared(self, event: _Cleared) -> None:
        """Records that a pod's engine has dropped its whole cache. O(prefixes of the contexts).

        Args:
            event: An AllBlocksCleared, or anything with its fields. A model_name of None means all models.

        Raises:
            InvalidTypeError: A field is of the wrong type.
            InvalidArgumentError: A number out of range.
        """
    def evict_expired(self) -> int:
        """Evicts expired prefixes now, as the background thread does. O(prefixes).

        Returns:
            int: The number of prefixes evicted.
        """
    def stats(self) -> PrefixTableStats:
        """Sizes and counts of the table.

        Returns:
            dict[str, int]: "contexts"; "prefixes" (entries: prefix hashes that a pod holds); "other_names" (names of a
            prefix beyond its first); "pod_sets" (different sets of pods); "pods" (once per context); "bytes" (memory of
            the whole table); and since the table was created: "unknown_parents" (stored events without effect),
            "unknown_removals" (blocks), "evicted_by_age" and "evicted_by_limit" (prefixes), "evicted_contexts".
        """
    def close(self) -> None:
        """Stops the background thread that evicts expired prefixes, and waits for its end. Further calls do nothing.

        The table can still be used: its limits hold, and evict_expired() does the work of the thread.
        """
    def __enter__(self) -> SyncPrefixHashTable: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Candidates:
    """The workers among which a policy chooses for a request. Each property is an array with one item for each worker
    and rank.

    Arrays are created when read, and are read-only. An unknown value is NaN in arrays of float64, and 0 in other
    arrays.
    """
    @property
    def workers(self) -> list[tuple[str, int]]:
        """list of (str, int): The worker's name and the rank, for each item."""
    @property
    def trusted(self) -> NDArray[np.bool_]:
        """numpy.ndarray of bool: True if the index's data about the worker can be trusted at present."""
    def __len__(self) -> int: ...
    @property
    def depth(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds, or will hold once it has
        computed the prompts just sent to it.
        """
    @property
    def device_blocks(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds on its device, according to
        events so far.
        """
    @property
    def host_blocks(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Leading blocks of the prompt on the worker's device or in its host memory."""
    @property
    def any_blocks(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Leading blocks of the prompt that the worker holds on any tier."""
    @property
    def shared_blocks(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Leading blocks of the prompt that running requests of the worker use. These blocks
        stay in its cache until those requests have ended.
        """
    @property
    def requests(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Requests that were sent to the worker and have not finished."""
    @property
    def waiting(self) -> NDArray[np.uint32]:
        """numpy.ndarray of uint32: Requests sent to the worker that have no first token yet."""
    @property
    def queued_tokens(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Prompt tokens of the worker's requests without a first token, minus the tokens
        expected in cache.
        """
    @property
    def queued_prompt_tokens(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Prompt tokens, including cached ones, of requests without a first token."""
    @property
    def head_tokens(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: The part of queued_tokens that belongs to the prompt being computed at present."""
    @property
    def head_elapsed(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Seconds since the worker began to compute its present prompt."""
    @property
    def held_tokens(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Prompt tokens to compute for requests that wait in the router for this worker."""
    @property
    def context_tokens(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Tokens of all requests at the worker, both prompts and generated tokens."""
    @property
    def used_blocks(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Blocks of the prompts of all requests at the worker; a block shared by several
        counts once. Prompts given without tokens or hashes are left out.
        """
    @property
    def output_tokens_left(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Tokens that requests at the worker are still expected to generate."""
    @property
    def reported_waiting(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Requests waiting in the engine's queue, as reported by the engine."""
    @property
    def reported_running(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Requests running at the engine, as reported by the engine."""
    @property
    def reported_kv_usage(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Share of the engine's KV cache in use, 0 to 1, as reported by the engine."""
    @property
    def reported_age(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Seconds since the engine last reported its queue and cache."""
    @property
    def prefill_rate(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Prompt tokens that the worker computes per second, as measured so far."""
    @property
    def step_time(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Seconds between two tokens of one request, as measured so far."""
    @property
    def age(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Seconds since the worker was added."""
    @property
    def sent(self) -> NDArray[np.uint64]:
        """numpy.ndarray of uint64: Requests sent to the worker since it was added."""
    @property
    def last_cold(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: The time of the last request sent to the worker for which no worker held a block;
        -inf if never.
        """
    @property
    def held_blocks(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Blocks that the worker holds, according to the index."""
    @property
    def capacity_blocks(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: Capacity of the worker's cache in blocks."""
    @property
    def weight(self) -> NDArray[np.float64]:
        """numpy.ndarray of float64: The worker's share of the work relative to others; 1 unless set otherwise."""

@final
class RoutedRequest:
    """A request for which a policy chooses a worker."""
    @property
    def tokens(self) -> int:
        """int: The number of tokens in the prompt."""
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block."""
    @property
    def content_hashes(self) -> NDArray[np.uint64]:
        """numpy.ndarray of uint64: Content hashes of the prompt's full blocks."""
    @property
    def session(self) -> int | None:
        """int or None: A hash of the name of the request's session (conversation)."""
    @property
    def parent(self) -> int | None:
        """int or None: A hash of the name of the session whose agent started this request's session."""
    @property
    def kind(self) -> str | None:
        """str or None: The event that caused the request: "start" or "subagent" of a session, "tool" (a tool call in
        the previous answer has ended), "user" (the previous answer called no tool), or "compaction".
        """
    @property
    def max_tokens(self) -> int | None:
        """int or None: The maximum number of tokens that the request may generate."""
    @property
    def priority(self) -> int:
        """int: The priority: waiting requests of higher priority are placed first."""
    @property
    def answers(self) -> int:
        """int: The number of answers that the request asks for."""
    @property
    def number(self) -> int:
        """int: The request's number, which no other request has."""
    def uncached(self, depth: int) -> int:
        """The number of prompt tokens to compute on a worker that holds some leading blocks, at least 1.

        Args:
            depth: The number of leading blocks held, an int of at least 0.

        Returns:
            int
        """

@final
class Decision:
    """The decision where a request goes. Returned by Router.choose, which counts the request at the chosen worker from
    then on.

    Report the progress of the request with the methods below. A request that waits in the router (waits is True) has no
    worker yet; a later Router.bind assigns one.
    """
    @property
    def number(self) -> int:
        """int: The request's number; 0 if it was refused at once."""
    @property
    def worker(self) -> str | None:
        """str or None: The worker chosen for the request; None if it waits or was refused."""
    @property
    def rank(self) -> int:
        """int: The worker's data-parallel rank; 0 without a worker."""
    @property
    def cached_tokens(self) -> int:
        """int: The number of prompt tokens expected in the worker's cache when the request arrives."""
    @property
    def uncached_tokens(self) -> int:
        """int: The number of prompt tokens that the worker is expected to compute."""
    @property
    def predicted_tokens(self) -> int:
        """int: The part of cached_tokens that the index does not show yet, from prompts just sent to the worker."""
    @property
    def action(self) -> str | None:
        """str or None: The worker's action for the part of the prompt that is not on its device: "compute" it, "load" a
        part from its own other tiers, or "pull" a part from another worker. None if there is nothing to load or pull.
        """
    @property
    def pull_source(self) -> tuple[str, int] | None:
        """(str, int) or None: The worker and rank from which a part of the prompt is to be pulled."""
    @property
    def pull_tokens(self) -> int:
        """int: The number of prompt tokens expected from pull_source."""
    @property
    def load_tokens(self) -> int:
        """int: The number of prompt tokens that the worker is expected to load from its own other tiers."""
    @property
    def max_load_tokens(self) -> int | None:
        """int or None: The largest number of prompt tokens that the worker may load after those on its device, since
        loading more would take longer than computing them; None if it may load all.
        """
    @property
    def transfer_seconds(self) -> float:
        """float: Seconds that loading and pulling are expected to take."""
    @property
    def waits(self) -> bool:
        """bool: True if the request waits in the router."""
    @property
    def refused(self) -> str | None:
        """str or None: The reason of a refusal: "no_worker", "queue_full", "displaced"; else None."""
    @property
    def why(self) -> str:
        """str: The reason for the choice of worker: "policy", "session", "only", "no_index", "no_tokens", "no_trust",
        "idle" or "policy_failed"; "waits" if the request waits; or the reason in refused.
        """
    def terms(self) -> dict[tuple[str, int], dict[str, float]] | None:
        """The values that the policy compared, if Router.choose was called with explain=True.

        Returns:
            dict of (worker, rank) to a dict of value by name, including "cached_tokens"; None without explain=True.
        """
    def allow(self, allowed: Iterable[str | tuple[str, int]] | None) -> bool:
        """Sets the workers that may get a waiting request, after the fleet has changed. The request keeps its place in
        the queue.

        Args:
            allowed: Names of the workers that may get the request, or pairs (name, rank); None for all.

        Returns:
            bool: False if the request is not waiting.

        Raises:
            InvalidTypeError: The argument is of the wrong type.
        """
    def first_token(self, now: float | None = None) -> None:
        """Reports that the request's first token was generated, so that its prompt is computed.

        Args:
            now: The time in seconds; None for the router's clock.
        """
    def progress(self, tokens: int, now: float | None = None) -> None:
        """Reports that more tokens were generated after the first, counted over all answers.

        Args:
            tokens: Number of tokens since the last call.
            now: The time in seconds; None for the router's clock.
        """
    def finish(
        self, cached_tokens: int | None = None, output_tokens: int | None = None, now: float | None = None
    ) -> bool:
        """Reports that the request has finished. Further calls do nothing.

        Args:
            cached_tokens: Prompt tokens that the engine reports as cached; None if it does not report them.
            output_tokens: Tokens that the engine reports as generated; None if it does not report them.
            now: The time in seconds; None for the router's clock.

        Returns:
            bool: False if the request had ended already.

        Raises:
            InvalidArgumentError: cached_tokens is more than the prompt has, or a number is out of range. The request
                counts as running.
        """
    def failed(self, now: float | None = None) -> bool:
        """Reports that the request has failed, or has stopped waiting. Further calls do nothing.

        Args:
            now: The time in seconds; None for the router's clock.

        Returns:
            bool: False if the request had ended already.
        """

class _Scores(Protocol):
    def scores(self) -> Mapping[str, int]: ...

_Depths: TypeAlias = tuple[int, int, int]
_Loadable: TypeAlias = Iterable[Loadable] | Mapping[str, _Depths] | Mapping[tuple[str, int], _Depths]
_Found: TypeAlias = _Scores | Mapping[str, int] | Mapping[tuple[str, int], int]

class _Policy(Protocol):
    def choose(self, request: RoutedRequest, candidates: Candidates, /) -> int | None: ...

@disjoint_base
class Router:
    """Chooses a worker for each request, and tracks the requests, the load and the speed of each worker.

    choose() selects a worker and counts the request there, in one step. Report the progress of the request with the
    methods of the Decision. Without an index, without tokens or without trusted workers, the policy still chooses, but
    without knowledge of the cached blocks; the decision's `why` then says so.

    Any number of threads may use one router at once.

    Args:
        policy: A policy's name, one of policy_names(), or an object with choose(request, candidates) -> row.
        workers: Names of the workers, or a pair (name, rank) for each.
        block_size: Number of tokens in a block.
        seed: Seed of all random choices, from 0 to 2**64 - 1.
        options: Options of the policy: dict of str to number, bool or str.
        settings: Settings of the router: dict with any of first_token_timeout, idle_timeout, announced_within,
            session_ttl, session_limit, warm_seconds, warm_share, prefill_rate, step_time, output_tokens, queue_limit,
            queue_timeout, order ("least-work" or "fcfs"), ageing, queue_scan, predicted_limit, host_floor, host_token,
            far_floor, far_token, pull_floor, pull_token, pull_setup, pull_sources, source_heard, pair_out.
        clock: Function that returns the time in seconds, for calls without `now`; None for time.monotonic.

    Raises:
        PolicyError: The policy is unknown, or has no option of a given name.
        ConfigError: A setting is unknown or out of range.
        InvalidTypeError: An argument is of the wrong type.
    """
    def __new__(
        cls,
        policy: str | _Policy = "kvatlas",
        workers: Iterable[str | tuple[str, int]] = (),
        *,
        block_size: SupportsIndex = 16,
        seed: int = 0,
        options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self: ...
    @property
    def policy(self) -> str:
        """str: The policy's name."""
    @property
    def uses_index(self) -> bool:
        """bool: True if the policy uses an index; otherwise prompts need not be looked up."""
    @property
    def block_size(self) -> int:
        """int: The number of tokens in a block."""
    @property
    def workers(self) -> list[tuple[str, int]]:
        """list of (str, int): The workers and ranks that get requests."""
    @property
    def waiting(self) -> int:
        """int: The number of requests that wait in the router."""
    @property
    def in_flight(self) -> int:
        """int: The number of requests sent to workers that have not ended."""
    def choose(
        self,
        *,
        tokens: _Tokens | None = None,
        content_hashes: Sequence[SupportsIndex] | NDArray[np.uint64] | None = None,
        prompt_tokens: int | None = None,
        match: _Found | None = None,
        loadable: _Loadable | None = None,
        lora: str | None = None,
        salt: str | None = None,
        session: str | int | None = None,
        max_tokens: int | None = None,
        priority: int = 0,
        answers: int = 1,
        text: str | None = None,
        allowed: Iterable[str | tuple[str, int]] | None = None,
        waited: float = 0.0,
        explain: bool = False,
        now: float | None = None,
    ) -> Decision:
        """Chooses a worker for a request, and counts the request there from now on.

        The prompt is given by tokens or content_hashes. Without them, prompt_tokens gives its length.

        Args:
            tokens: Token ids of the prompt, as accepted by kvatlas.content_hashes().
            content_hashes: Content hashes of the prompt's full blocks, shape (n,): a uint64 array or a list of ints.
            prompt_tokens: The length of the prompt in tokens; None for the length of tokens or content_hashes.
            match: The depth to which each worker holds the prompt: a kvatlas.Match, an object with scores(), or a dict
                of worker, or of (worker, rank), to depth in blocks; None if not looked up.
            loadable: The part of the prompt that workers can load beyond their device, with match only: the return
                value of kvatlas.BlockIndex.loading.find(), or a dict of worker, or of (worker, rank), to three depths
                in blocks: host (on its device and in host memory after it), loadable (on all tiers from which it can
                load) and pullable (which others can pull from it). None if no worker can load anything.
            lora: Name of the LoRA adapter, with tokens only.
            salt: Cache salt, with tokens only.
            session: Name or number of the session that the request belongs to.
            max_tokens: The maximum number of tokens that the request may generate.
            priority: Waiting requests of higher priority are placed first.
            answers: Number of answers that the request asks for.
            text: The prompt as text, for policies that work on characters.
            allowed: Names of the workers that may get the request, or pairs (name, rank); None for all.
            waited: Seconds that the request has waited in the router before, if it failed at a worker and is placed
                again.
            explain: True to keep the values that the policy compares, for Decision.terms().
            now: The time in seconds; None for the clock.

        Returns:
            Decision

        Raises:
            InvalidTypeError: An argument is of the wrong type.
            InvalidArgumentError: Both tokens and content_hashes are given, or the prompt's length is unknown.
            PolicyError: A policy in Python failed.
        """
    def bind(
        self,
        find: Callable[[NDArray[np.uint64]], _Found | tuple[_Found, _Loadable]] | None = None,
        now: float | None = None,
    ) -> list[Decision]:
        """Places waiting requests on workers that have capacity, and refuses those that have waited too long.

        Call this after a first token, after a request's end, when a worker joins, and every few hundredths of a second
        while any request waits.

        Args:
            find: Function that looks up a prompt again: its argument are the content hashes, its return value the
                argument match of choose(), or a tuple of the arguments match and loadable. None to use the match given
                to choose().
            now: The time in seconds; None for the clock.

        Returns:
            list of Decision: The decisions of requests that no longer wait, the same objects that choose() returned.

        Raises:
            PolicyError: A policy in Python failed.
        """
    def tell(self, other: Router, seconds: float = 2.0, now: float | None = None) -> None:
        """Tells another router about the requests sent to the workers that both routers have. The other router counts
        them like its own until the next call.

        Call this for each pair of routers every few hundredths of a second.

        Args:
            other: The router to tell.
            seconds: Seconds for which the requests count without another call.
            now: The time in seconds; None for the clock.

        Raises:
            InvalidArgumentError: The other router is this one.
        """
    def expire(self, now: float | None = None) -> int:
        """Gives up requests for which no progress was reported for too long.

        Args:
            now: The time in seconds; None for the clock.

        Returns:
            int: The number of requests given up.
        """
    def add_worker(self, worker: str, rank: int = 0, weight: float = 1.0, now: float | None = None) -> None:
        """Adds a worker, or resumes sending requests to a drained one.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank.
            weight: The worker's share of the work relative to others, above 0.
            now: The time in seconds; None for the clock.
        """
    def remove_worker(self, worker: str, rank: int | None = None, now: float | None = None) -> int:
        """Removes a worker or one of its ranks, with its requests.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank; None for all.
            now: The time in seconds; None for the clock.

        Returns:
            int: The number of requests that the worker had.
        """
    def drain_worker(self, worker: str, rank: int = 0) -> None:
        """Stops sending new requests to a worker (drains it). Its running requests continue. add_worker() resumes.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank.

        Raises:
            InvalidArgumentError: No worker has this name and rank.
        """
    def set_trusted(self, worker: str, trusted: bool, rank: int = 0) -> None:
        """Sets whether the router trusts the index's data about a worker.

        Args:
            worker: The worker's name.
            trusted: True to trust the data.
            rank: Data-parallel rank.

        Raises:
            InvalidArgumentError: No worker has this name and rank.
        """
    def set_pulls(self, worker: str, group: str | None, rank: int = 0, now: float | None = None) -> None:
        """Sets whether a worker accepts instructions on what to load, and can pull blocks from other workers, and they
        from it.

        Args:
            worker: The worker's name.
            group: A name that is the same for all workers that can pull from each other: they have the same model,
                block size, hash seed and layout. None: the worker loads all that it can, and neither pulls nor is
                pulled from.
            rank: Data-parallel rank.
            now: The time in seconds; None for the clock.

        Raises:
            InvalidArgumentError: No worker has this name and rank.
        """
    def heard(self, worker: str, rank: int = 0, now: float | None = None) -> None:
        """Reports that a worker is alive: others pull only from a worker that was reported alive a moment ago.

        Reports on the worker's requests, and report(), also count.

        Args:
            worker: The worker's name.
            rank: Data-parallel rank.
            now: The time in seconds; None for the clock.

        Raises:
            InvalidArgumentError: No worker has this name and rank.
        """
    def transfers(self, now: float | None = None) -> list[dict[str, Any]]:
        """The costs of loading and pulling blocks, as learnt so far.

        Args:
            now: The time in seconds; None for the clock.

        Returns:
            list of dict: "kind" ("host": from a worker's own host memory, "far": from its disks and pools, "pull": from
            another worker's host memory), "worker", "rank", "source" ((str, int) or None), "floor" (seconds besides
            those for the tokens), "token" (seconds for each token), "samples" (number of measurements), and "out"
            (seconds until the pair may pull again; 0 if it may now).
        """
    def report(
        self,
        worker: str,
        *,
        waiting: float | None = None,
        running: float | None = None,
        kv_usage: float | None = None,
        capacity_blocks: float | None = None,
        held_blocks: float | None = None,
        rank: int = 0,
        now: float | None = None,
    ) -> None:
        """Reports the figures that an engine publishes about itself. None means unknown.

        Args:
            worker: The worker's name.
            waiting: Number of requests in the engine's queue.
            running: Number of requests that the engine is processing.
            kv_usage: Share of the engine's KV cache in use, 0 to 1.
            capacity_blocks: Capacity of the engine's cache in blocks.
            held_blocks: Number of blocks that the engine holds, according to the index.
            rank: Data-parallel rank.
            now: The time in seconds; None for the clock.

        Raises:
            InvalidArgumentError: No worker has this name and rank.
        """
    def candidates(self, now: float | None = None) -> Candidates:
        """The present state of all workers, one item for each worker number, including drained and removed workers.

        Args:
            now: The time in seconds; None for the clock.

        Returns:
            Candidates
        """
    def counts(self) -> dict[str, int]:
        """Counts since the router was created.

        Returns:
            dict of str to int: "placed", "waited", "finished", "failed", "expired", "orphaned", "expected_cached" and
            "reported_cached" (prompt tokens of finished requests whose engine reported them), "refused_" and "why_"
            followed by the words of Decision, "pulls" (sent) and "pulls_" followed by their result ("brought",
            "short", "nothing", "late", "failed", "unknown"), and "predicted_blocks" and "sessions" (remembered at
            present).
        """

def policy_names() -> list[str]:
    """The names of the policies that come with kvatlas.

    Returns:
        list of str
    """

def unused_sockets() -> list[str]:
    """The addresses of the sockets taken over by adopt_sockets that no server has used.

    Returns:
        list[str]: The addresses.
    """

def routing_defaults() -> dict[str, float]:
    """The defaults of the router's numeric settings, by name.

    Returns:
        dict of str to float
    """
