"""The metrics of a service, as one that runs in this process describes them."""

from __future__ import annotations

from tools.docs.markdown import cell, code, join, table

# The sections of the page: a heading, a sentence, and how the names begin. The first that fits has a metric.
SECTIONS = [
    ("Learning what was never announced", "[Starting late](../how/late.md) explains it.", ("kvatlas_adopt_",)),
    (
        "Snapshots",
        "[Operations](../guides/operations.md#restarts-without-loss) has the outcomes.",
        ("kvatlas_snapshot_", "kvatlas_snapshots_"),
    ),
    ("Relays", "", ("kvatlas_relay_",)),
    ("Sources of engines", "[In Kubernetes](../guides/kubernetes.md#engines) explains them.", ("kvatlas_discovery_",)),
    ("Sites", "All have the labels `model` and `routing_group`.", ("kvatlas_sites",)),
    ("Indexes", "All have the labels `model` and `routing_group`.", ("kvatlas_index_",)),
    ("Each stream", "All have the labels `worker` and `rank`.", ("kvatlas_stream_",)),
    ("Streams", "", ("kvatlas_streams", "kvatlas_event_")),
    ("The process", "On Linux only.", ("process_",)),
    ("Requests and readiness", "", ("",)),
]


def page() -> str:
    """A table for each section, the last one first."""
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading, _, _ in SECTIONS}
    for name, help_ in served().items():
        heading = next(heading for heading, _, begins in SECTIONS if name.startswith(begins))
        rows[heading].append((code(name), cell(help_)))
    parts = []
    for heading, sentence, _ in [SECTIONS[-1], *SECTIONS[:-1]]:
        parts += [f"## {heading}", sentence, table(("metric", "meaning"), rows[heading])]
    return join(parts)


def served() -> dict[str, str]:
    """The texts of all metrics by name, from `/metrics` of a service without engines."""
    from kvatlas import Service  # noqa: PLC0415 - only when the page is built
    from kvatlas.service import Config, HttpConfig  # noqa: PLC0415

    with Service(config=Config(http=HttpConfig(bind="127.0.0.1:0"))) as service, service.client() as client:
        return described(client.metrics())


def described(text: str) -> dict[str, str]:
    """The help of each metric in a text of Prometheus, by the name that its samples have."""
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif line.startswith("# HELP "):
            name, _, about = line.removeprefix("# HELP ").partition(" ")
            helps[name] = about.replace("\\n", " ").replace('\\"', '"').rstrip(".")
    return {name + ("_total" if kind == "counter" else ""): helps[name] for name, kind in kinds.items()}
