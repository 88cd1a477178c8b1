"""The documents: every Python example runs, the generated pages are complete, and the site builds without a warning."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from tools.docs import cli, configuration, http, metrics, router_metrics, routes
from tools.docs import errors as error_page

from kvatlas import errors
from kvatlas.cli import main
from kvatlas.routing import Router

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
README_WORDS = 730  # with code and tables


def examples(path: Path) -> list[tuple[int, str]]:
    """The blocks fenced as Python, each with the number of its first line."""
    found: list[tuple[int, str]] = []
    fence: tuple[int, list[str]] | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is None and line.strip() == "```python":
            fence = (number + 1, [])
        elif fence is not None and line.strip() == "```":
            found.append((fence[0], "\n".join(fence[1])))
            fence = None
        elif fence is not None:
            fence[1].append(line)
    assert fence is None, f"{path.name}: a fence that is not closed"
    return found


def with_examples() -> list[Path]:
    return [path for path in DOCUMENTS if examples(path)]


@pytest.mark.parametrize("path", with_examples(), ids=lambda path: str(path.relative_to(ROOT)))
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a document run in order, as one program would."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, source in examples(path):
        # Blank lines in front make tracebacks name the document's own lines.
        exec(compile("\n" * (line - 1) + source, str(path), "exec", dont_inherit=True), namespace)


def test_the_pages_that_should_have_examples_have_them() -> None:
    found = {str(path.relative_to(ROOT)) for path in with_examples()}
    assert found >= {
        "README.md",
        "docs/start/first-router.md",
        "docs/guides/index-in-python.md",
        "docs/guides/clients.md",
        "docs/guides/tokens.md",
        "docs/how/exact.md",
        "docs/simulator/index.md",
        "docs/lab/replay.md",
        "docs/trees/index.md",
        "docs/trees/paged-attention.md",
    }


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < README_WORDS


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


def commands(text: str) -> list[str]:
    """The commands that begin with `kvatlas`, in fenced blocks and in code spans, without the remark behind them."""
    joined = text.replace("\\\n", " ")
    fenced = [
        line
        for block in re.findall(r"^```(?:sh|console|ini)\n(.*?)^```", joined, re.MULTILINE | re.DOTALL)
        for line in block.split("\n")
    ]
    spans = re.findall(r"(?<!`)`(kvatlas [^`]+)`(?!`)", joined)
    found = [re.search(r"(?:^|[ /])(kvatlas [a-z].*)", line) for line in fenced]
    return [each.partition(" #")[0] for each in spans + [match[1] for match in found if match]]


def test_every_command_in_the_documents_exists() -> None:
    seen = 0
    for path in DOCUMENTS:
        if path.parent.name == "design":
            continue
        for line in commands(path.read_text(encoding="utf-8")):
            command: click.Command = main
            context = click.Context(main, info_name="kvatlas", **main.context_settings)
            words = line.split()[1:]
            while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
                below = command.get_command(context, words[0])
                assert below is not None, f"{path.name}: {line}"
                command, words = below, words[1:]
            known = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in known, f"{path.name}: {word} of {line}"
                    seen += 1
    assert seen > 50


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = cli.page()

    def check(command: click.Command, context: click.Context) -> None:
        if command is not main:
            assert f"# {context.command_path}\n" in page
            for name in (name for parameter in command.params for name in parameter.opts if name.startswith("--")):
                assert name in page, f"{context.command_path} {name}"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                check(below, click.Context(below, info_name=name, parent=context))

    check(main, click.Context(main, info_name="kvatlas", **main.context_settings))


def test_the_http_page_has_every_route_field_and_code() -> None:
    page = http.page()
    api = json.loads(http.DOCUMENT.read_text(encoding="utf-8"))
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            assert f"### {method.upper()} {path}\n" in page
            for code in about.get("x-error-codes", []):
                assert f"`{code}`" in page
    for name in api["components"]["schemas"]:
        assert f"### {name}\n" in page
    assert "`routing_group`" in page
    assert "`instance_id` (required)" in page
    assert "Or, as `application/octet-stream`: Token ids as little-endian 32-bit unsigned integers." in page
    assert "| `among` | array of string |" in page
    assert "| 404 | `unknown_rank` | the worker has no such rank |" in page


def test_the_page_of_routes_has_those_of_router_and_service() -> None:
    """Tests in Rust, beside the routes, compare every row."""
    assert "| `POST` | `/explain` | key |" in routes.router_page()
    assert "`/v1/chat/completions`, `/v1/completions`" in routes.router_page()
    assert "| `POST` | `/register` | admin key |" in routes.service_page()


def test_the_page_of_metrics_has_them_in_sections() -> None:
    sections = dict(part.split("\n", 1) for part in metrics.page().split("## ")[1:])
    assert [heading for heading, _, _ in metrics.SECTIONS] == [*list(sections)[1:], *list(sections)[:1]]
    assert "| `kvatlas_stream_gaps_total` | Gaps: how often batches were missing |" in sections["Each stream"]
    assert "| `kvatlas_ready` | 1 if the service is ready" in sections["Requests and readiness"]


def test_the_page_of_the_routers_metrics_has_labels_and_their_values() -> None:
    page = router_metrics.page()
    assert "| `kvatlas_router_hedged_requests_total` | outcome: `won`, `lost`, `left_out` | With hedge_after" in page
    assert "| `kvatlas_router_engine_connections_total` | engine | Connections opened to an engine |" in page
    assert "`kvatlas_router_peers`" in page
    assert "`kvatlas_router_global_questions_total`" in page


def test_the_error_page_has_every_class() -> None:
    page = error_page.page()
    assert all(name in page for name in errors.__all__)
    assert "`length_mismatch`" in page
    assert error_page.codes(errors.IndexFullError) == ["index_full"]


def test_the_configuration_page_has_every_setting() -> None:
    """The page has every setting; what it says of each is checked in tests/unit/service/test_config_told.py."""
    page = configuration.page()
    for row in ("| `http.bind` | `--bind` | `KVATLAS_BIND` | `127.0.0.1:8090` |", "| `streams.stale_after` |"):
        assert row in page


def test_the_page_of_policies_has_every_option_of_the_default() -> None:
    with pytest.raises(errors.PolicyError) as caught:
        Router(workers=("w0",), block_size=16, options={"no_such": 1})
    names = str(caught.value).partition(" it has ")[2].split(", ")
    page = (ROOT / "docs/reference/policies.md").read_text(encoding="utf-8")
    section = next(part for part in page.split("\n## ") if part.startswith("`kvatlas`"))
    listed = [
        name for row in re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE) for name in re.findall(r"\w+", row)
    ]
    assert listed == names


def test_an_unknown_generated_part_ends_the_build() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: run `make build-tests`")
    fill = importlib.import_module("tools.docs.hook").fill
    assert fill("a\n<!-- a remark -->\nb") == "a\n<!-- a remark -->\nb"
    with pytest.raises(KeyError):
        fill("<!-- generated: nothing -->")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs is not installed: run `make build-tests`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<!-- generated:" not in text, page
        assert "fonts.googleapis" not in text, page
        assert "unpkg.com" not in text, page
