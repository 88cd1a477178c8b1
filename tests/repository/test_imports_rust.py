"""Tests of the dependencies between crates, and that no two folders of a crate need each other."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The crates of the product, the laboratory and the trees.
DIRECTORIES = {
    manifest.parent.name: manifest.parent
    for products in ("crates", "lab/crates", "trees/crates")
    for manifest in (ROOT / products).glob("*/Cargo.toml")
}
CRATES = sorted(DIRECTORIES)

# What each crate may depend on, of those here. Tests may use those of `TESTS` besides.
TESTS = {"testing", "fake_engine"}
MAY_USE = {
    "codec": set(),
    "index": {"codec"},
    "epp": set(),
    "settings": set(),
    "testing": set(),
    "ui": set(),
    "wire": {"codec", "index"},
    "adopt": {"index", "wire"},
    "digest": {"index"},
    "http": {"settings"},
    "stream": set(),
    "follow": {"adopt", "codec", "digest", "index", "settings", "stream", "ui", "wire"},
    "service": {"digest", "follow", "http", "index", "settings", "ui", "wire"},
    "routing": {"index"},
    "prompt": {"index"},
    "router": {"epp", "follow", "http", "index", "prompt", "routing", "settings", "ui", "wire"},
    # Beside the product.
    "fake_engine": {"adopt", "index", "testing", "wire"},
    "designs": {"index"},
    "trees": {"codec"},
    "bench": {"designs", "index"},
    "peer_policies": {"index", "routing"},
    # All of it, to be called from Python.
    "python": set(CRATES) - {"python"} - TESTS,
}
# Circles between folders, and files beside them, that are still there, each with the reason. The list only shrinks.
ALLOWED_CIRCLES: dict[str, list[tuple[set[str], str]]] = {}
Module = tuple[str, ...]


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_depends_only_on_what_is_below_it(crate: str) -> None:
    manifest = tomllib.loads((DIRECTORIES[crate] / "Cargo.toml").read_text())
    own = {
        kind: {
            name.removeprefix("kvatlas-").replace("-", "_")
            for name in manifest.get(kind, {})
            if name.startswith("kvatlas-")
        }
        for kind in ("dependencies", "dev-dependencies", "build-dependencies")
    }
    assert own["dependencies"] | own["build-dependencies"] <= MAY_USE[crate]
    # A crate's own tests may ask for its feature `testing`.
    assert own["dev-dependencies"] <= MAY_USE[crate] | TESTS | {crate}


def test_the_order_of_crates_has_no_circles() -> None:
    below = {crate: set(MAY_USE[crate]) for crate in CRATES}
    while free := {crate for crate, names in below.items() if not names & below.keys()}:
        for crate in free:
            del below[crate]
    assert not below


class Crate:
    """The files of a crate, and which of them each needs: `use` lines and paths, through what modules re-export."""

    def __init__(self, name: str) -> None:
        source = DIRECTORIES[name] / "src"
        self.code: dict[Module, str] = {}
        for path in source.rglob("*.rs"):
            module = path.relative_to(source).with_suffix("").parts
            if not any(re.fullmatch(r"tests|\w+_tests", part) for part in module):
                module = module[:-1] if module[-1] in ("mod", "lib") else module
                self.code[module] = code_of(path.read_text())

    def needs(self, module: Module) -> set[Module]:
        """The other files that a file needs."""
        found = set()
        for names, path, local in self._paths(module):
            if names and not re.search(rf"\b{re.escape(local)}\b", without_uses(self.code[module])):
                continue  # handed on only
            if (target := self.resolve(module, path)) is not None and target != module:
                found.add(target)
        return found

    def resolve(self, module: Module, path: list[str], depth: int = 0) -> Module | None:
        """The file that defines the target of a path in a module; None if another crate defines it."""
        at, rest = module, list(path)
        if rest[0] == "crate":
            at, rest = (), rest[1:]
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                at, rest = (at[:-1] if rest[0] == "super" else at), rest[1:]
        elif (*module, rest[0]) not in self.code:
            return None
        while rest and (*at, rest[0]) in self.code:
            at, rest = (*at, rest[0]), rest[1:]
        if not rest or depth > 8:
            return at
        for names, handed, local in self._paths(at):
            if names and local in (rest[0], "*"):
                target = self.resolve(at, handed, depth + 1)
                if target is not None and (local != "*" or defines(self.code[target], rest[0])):
                    return target
        return at

    @cache  # noqa: B019 - a crate lives as long as the test
    def _paths(self, module: Module) -> list[tuple[bool, list[str], str]]:
        """The paths that a module uses: whether each is handed on, its parts, and its name here."""
        code, found = self.code[module], []
        for public, tree in re.findall(r"^\s*(pub(?:\([\w:\s]+\))? )?use ([^;]+);", code, re.MULTILINE):
            for path in flat(re.sub(r"\s+", " ", tree)):
                parts, _, alias = path.partition(" as ")
                names = parts.strip().split("::")
                names = names[:-1] if names[-1] == "self" and len(names) > 1 else names
                found.append((bool(public), names, alias or names[-1]))
        inline = re.findall(r"(?<![\w:])((?:crate|self|super)(?:::\w+)+)", without_uses(code))
        return found + [(False, path.split("::"), path) for path in inline]


def code_of(text: str) -> str:
    """A file without comments, strings and what only tests have."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    text = re.sub(r"\bpub\(in [\w:]+\)", "pub", text)  # says who may use it, and uses nothing
    text = re.sub(
        r"#\[cfg\((?:test|all\(test[^\]]*|all\(loom[^\]]*)\)\]\s*(?:pub(?:\(\w+\))? )?mod \w+ \{.*",
        "",
        text,
        flags=re.DOTALL,
    )
    return re.sub(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))? )?(?:use|mod) [^;]*;", "", text)


def without_uses(code: str) -> str:
    return re.sub(r"^\s*(?:pub(?:\([\w:\s]+\))? )?use [^;]+;", "", code, flags=re.MULTILINE)


def defines(code: str, name: str) -> bool:
    return bool(re.search(rf"\b(?:fn|struct|enum|trait|type|const|static|mod|macro_rules!) {re.escape(name)}\b", code))


def flat(tree: str) -> Iterator[str]:
    """The single paths of a `use` with braces."""
    head, brace, inside = tree.partition("{")
    if not brace:
        yield tree.strip()
        return
    inside = inside[: inside.rindex("}")]
    depth, start = 0, 0
    for at, letter in enumerate(inside + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if part := inside[start:at].strip():
                yield from flat(head.strip() + part)
            start = at + 1


def circles(graph: dict[Module, set[Module]]) -> list[set[Module]]:
    """Groups of files that need each other, directly or through other files."""

    def reach(start: Module) -> set[Module]:
        seen: set[Module] = set()
        left = list(graph[start])
        while left:
            if (at := left.pop()) not in seen:
                seen.add(at)
                left.extend(graph[at])
        return seen

    reached = {module: reach(module) for module in graph}
    groups: list[set[Module]] = []
    for module in graph:
        if module in reached[module] and not any(module in group for group in groups):
            groups.append({other for other in reached[module] if module in reached[other]})
    return groups


def rooms(files: Crate, folder: Module) -> dict[Module, set[Module]]:
    """Needs of the entries of a folder, which are its files and its subfolders as wholes, among each other."""
    size = len(folder)

    def room(module: Module) -> Module:
        return module if len(module) == size else module[: size + 1]

    inside = [module for module in files.code if module[:size] == folder]
    graph: dict[Module, set[Module]] = {room(module): set() for module in inside}
    for module in inside:
        needed = {room(other) for other in files.needs(module) if other[:size] == folder}
        graph[room(module)] |= needed - {room(module)}
    return graph


def circles_of_folders(crate: str) -> list[set[str]]:
    """Groups of a crate's folders, and files beside them, that need each other. Files of one folder may."""
    files = Crate(crate)
    folders = {module[:size] for module in files.code for size in range(len(module))}
    return [
        {"/".join(room) or "lib" for room in group}
        for folder in sorted(folders)
        for group in circles(rooms(files, folder))
        if any(room in folders for room in group - {folder})
    ]


@pytest.mark.parametrize("crate", CRATES)
def test_no_two_folders_of_a_crate_need_each_other(crate: str) -> None:
    allowed = [rooms for rooms, _ in ALLOWED_CIRCLES.get(crate, [])]
    found = circles_of_folders(crate)
    assert [sorted(group) for group in found if not any(group <= rooms for rooms in allowed)] == []
    # What has left a circle must not come back: the list follows.
    left = [sorted(rooms - set().union(*found)) for rooms in allowed if not rooms <= set().union(*found)]
    assert left == [], "take these out of ALLOWED_CIRCLES"


def test_files_are_found_through_what_modules_hand_on() -> None:
    """The scan sees what the compiler sees, at places that are easy to get wrong."""
    follow = Crate("follow")
    assert follow.resolve(("stream", "copier"), ["crate", "state", "StreamHead"]) == ("state", "saved")
    assert follow.resolve(("snapshot", "keeper"), ["super", "Source"]) == ("snapshot",)
    assert follow.resolve((), ["config", "Config"]) == ("config",)
    assert follow.resolve(("config",), ["serde", "Deserialize"]) is None
    # Neither settings nor state know who follows streams.
    for low in (("config",), ("state", "keyspace"), ("snapshot", "keeper")):
        below: set[Module] = set()
        left: list[Module] = [low]
        while left:
            if (at := left.pop()) not in below:
                below.add(at)
                left.extend(follow.needs(at))
        assert not {module for module in below if module[:1] in (("fleet",), ("stream",), ("relay_reader",))}, low
    assert flat_of("a::{b, c::{self, d as e}}") == ["a::b", "a::c::self", "a::c::d as e"]


def flat_of(tree: str) -> list[str]:
    return list(flat(tree))
