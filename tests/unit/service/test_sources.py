"""Sources of engines as settings name them."""

import pytest

from kvatlas.errors import ConfigError
from kvatlas.service import DiscoveryConfig, read_config
from kvatlas.service.config.sources import EngineSources, HostName, PodSelection, PoolName, selection


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("k8s:llm/app=vllm", PodSelection("llm", "app=vllm")),
        ("k8s:/app=vllm,tier!=test", PodSelection("", "app=vllm,tier!=test")),
        ("k8s:llm/app in (vllm, sglang),!old,example.com/gpu", None),
        ("k8s:llm/leaderworkerset.sigs.k8s.io/worker-index=0", None),
        ("k8s:llm/app=vllm:8000,8001", PodSelection("llm", "app=vllm", (8000, 8001))),
        ("pool:/qwen-3.x", PoolName("", "qwen-3.x")),
        ("dns:vllm.llm.svc:8000", HostName("vllm.llm.svc", 8000)),
    ],
)
def test_sources_are_read(text: str, meant: object) -> None:
    found = selection(text)
    assert meant in (None, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://a:1", '"http://a:1" is none of k8s:NAMESPACE/SELECTOR, pool:NAMESPACE/NAME and dns:NAME:PORT'),
        ("k8s:llm/app=a:", '"" is not a list of from 1 to 8 ports'),
        ("k8s:llm/app=a:8000,0", '"8000,0" is not a list of from 1 to 8 ports'),
        ("k8s:llm/app=a:8000,8000", "is not a list of from 1 to 8 ports"),
        ("pool:llm", '"pool:llm" is not pool:NAMESPACE/NAME, such as pool:llm/qwen3'),
        ("pool:llm/Up", '"pool:llm/Up" is not pool:NAMESPACE/NAME'),
        ("k8s:llm", '"k8s:llm" is not k8s:NAMESPACE/SELECTOR, such as k8s:llm/app=vllm'),
        ("k8s:Up/app=a", '"k8s:Up/app=a" is not k8s:NAMESPACE/SELECTOR'),
        ("k8s:llm/", '"" is not a label selector'),
        ("k8s:llm/app=a b", '"app=a b" is not a label selector'),
        ("k8s:llm/app in vllm", "is not a label selector"),
        ("dns:name", "'dns:name' is not dns:NAME:PORT"),
    ],
)
def test_others_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DiscoveryConfig(sources=(text,))
    assert "discovery.sources must be a list of sources" in str(refused.value)
    assert words in str(refused.value)


def test_several_are_separated_by_white_space_and_keep_their_commas() -> None:
    both = ("k8s:llm/app in (a, b),c=d", "dns:name:8000", "pool:llm/a")
    assert EngineSources().parse("k8s:llm/app in (a, b),c=d dns:name:8000 pool:llm/a") == both
    assert read_config({"discovery.sources": "\n".join(both)}, {}).config.discovery.sources == both
    assert read_config({}, {"KVATLAS_DISCOVER": " ".join(both)}).config.discovery.sources == both
    with pytest.raises(ConfigError, match="twice"):
        DiscoveryConfig(sources=(both[1], both[1]))


def test_the_api_servers_url_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"kubernetes_url must be http://HOST:PORT or https://HOST:PORT, but"):
        DiscoveryConfig(kubernetes_url="kubernetes")
