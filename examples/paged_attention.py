"""A paged-attention allocator on a RadixTrie: docs/trees/paged-attention.md explains it.

An engine keeps keys and values in a pool of blocks, one for each page of tokens. The trie remembers which block holds
each page of a prefix, so that prompts with the same beginning share blocks.
"""

from kvatlas.trees import RadixTrie, TrieNode

PAGE = 4


class Sequence:
    """A running request: its tokens, their blocks, and the node where its whole pages end."""

    def __init__(self, number: int, node: TrieNode) -> None:
        self.number, self.node = number, node
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.in_trie = 0  # pages that the trie has


class PoolIsFullError(Exception):
    """Every block is in use: the request has to wait."""


class Allocator:
    """Blocks for sequences. Each block is free, in the trie, or the unfinished page of one sequence."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.trie = RadixTrie(PAGE)
        self.started = 0

    def start(self, prompt: list[int]) -> tuple[Sequence, int]:
        """A sequence with blocks for the prompt, and how many of its tokens need no computing."""
        self.started += 1
        node, cached = self.trie.match_prefix(prompt)
        sequence = Sequence(self.started, node)
        # Mark before evicting anything, or the blocks just found could be evicted.
        self.trie.mark_in_use_by(node, sequence.number)
        sequence.blocks, sequence.in_trie = cached, len(cached)
        try:
            sequence.blocks = cached + self.take(-(-len(prompt) // PAGE) - len(cached))
        except PoolIsFullError:
            self.trie.mark_not_in_use_by(node, sequence.number)
            raise
        sequence.tokens = list(prompt)
        self.keep_whole_pages(sequence)
        return sequence, len(cached) * PAGE

    def append(self, sequence: Sequence, token: int) -> None:
        """The sequence has one more token."""
        if len(sequence.tokens) == len(sequence.blocks) * PAGE:
            sequence.blocks += self.take(1)
        sequence.tokens.append(token)
        self.keep_whole_pages(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended. Its whole pages stay in the trie, now the most recently used."""
        self.free += sequence.blocks[sequence.in_trie :]
        self.trie.mark_not_in_use_by(sequence.node, sequence.number)

    def take(self, wanted: int) -> list[int]:
        """Blocks from the free list and, if that is too short, from what no sequence uses."""
        if wanted > len(self.free):
            self.free += self.trie.evict_blocks(wanted - len(self.free))
        if wanted > len(self.free):
            raise PoolIsFullError
        return [self.free.pop() for _ in range(wanted)]

    def keep_whole_pages(self, sequence: Sequence) -> None:
        """Whole pages go into the trie as soon as they are full, below the node where the ones before end."""
        pages = len(sequence.tokens) // PAGE
        if pages == sequence.in_trie:
            return
        part = slice(sequence.in_trie, pages)
        tokens = sequence.tokens[part.start * PAGE : pages * PAGE]
        end, there = self.trie.insert_with_count(tokens, sequence.blocks[part], sequence.node)
        self.trie.mark_in_use_by(end, sequence.number)
        if there:
            # Another sequence has stored the same tokens first: use its blocks and free ours.
            self.free += sequence.blocks[part][:there]
            _, sequence.blocks[part] = self.trie.match_prefix(tokens, sequence.node)
        sequence.node, sequence.in_trie = end, pages


def main() -> None:
    """Sequences that share pages, grow, end, and push out pages that no sequence uses."""
    pool = Allocator(blocks=10)
    system = [7] * 8  # two pages that all prompts share

    first, cached = pool.start([*system, 1, 2, 3, 4, 5])
    print(f"first prompt: {cached} of 13 tokens cached, {len(first.blocks)} blocks")
    second, cached = pool.start([*system, 9, 9])
    print(f"second prompt: {cached} of 10 tokens cached")
    assert second.blocks[:2] == first.blocks[:2]

    for token in [6, 7, 8]:  # the fourth page is full now, and shared from here on
        pool.append(first, token)
    third, cached = pool.start([*system, 1, 2, 3, 4, 5, 6, 7, 8])
    print(f"third prompt: {cached} of 16 tokens cached")
    assert third.blocks == first.blocks

    pool.finish(first)
    pool.finish(second)
    assert pool.trie.evict_blocks(10) == []  # the third sequence uses all of them
    pool.finish(third)

    large, _ = pool.start([3] * 32)  # 8 pages; 6 blocks are free, so two pages are evicted, from the end
    assert pool.trie.pretty_format() == [str(system), str([3] * 32)]
    try:
        pool.start([5] * 12)
    except PoolIsFullError:
        print("a prompt of 3 pages has to wait: there is room for 2")
    pool.finish(large)
    small, _ = pool.start([5] * 12)
    pool.finish(small)

    pool.free += pool.trie.evict_blocks(100)
    assert small.node.evicted  # an evicted node is refused from now on
    print("every block is free again:", sorted(pool.free) == list(range(10)))


if __name__ == "__main__":
    main()
