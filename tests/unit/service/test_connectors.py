"""Answers of engines about their tiers, in metrics and settings as real ones have them."""

from typing import Any

from kvatlas.service.discovery.connectors import Connectors, SharedTier, of_sglang, of_vllm

LABELS = 'engine="0",model_name="m"'
METRICS = [
    f'vllm:cache_config_info{{block_size="16",{LABELS},prefix_caching_hash_algo="sha256"}} 1.0',
    (
        f'vllm:kv_offload_config_info{{cpu_blocks_per_chunk="4",cpu_capacity_tokens_at_max_len="None",{LABELS},'
        'cpu_kv_bytes_per_chunk="9437184",cpu_num_chunks="512"} 1.0'
    ),
    f'vllm:kv_offload_tiering_chunk_queries_total{{{LABELS},tier="0:primary"}} 12.0',
    f'vllm:kv_offload_tiering_active_promotion_jobs{{{LABELS},tier="1:p2p"}} 0.0',
    f'vllm:kv_offload_tiering_active_promotion_jobs{{{LABELS},tier="2:fs"}} 0.0',
    f'vllm:kv_offload_tiering_active_cascade_jobs{{{LABELS},tier="2:fs"}} 0.0',
    f'vllm:kv_offload_tiering_active_cascade_jobs{{{LABELS},tier="a tier"}} 0.0',
]


def settings(**extra: Any) -> dict[str, Any]:
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    env = {
        "VLLM_P2P_HANDSHAKE_TIMEOUT_S": 3,
        "VLLM_P2P_SIDE_CHANNEL_HOST": "10.0.0.1",
        "VLLM_P2P_SIDE_CHANNEL_PORT": 5710,
    }
    return {"vllm_config": {"kv_transfer_config": transfer}, "vllm_env": env, "system_env": {}}


def test_metrics_show_tiers_chunks_and_the_hash_function() -> None:
    assert of_vllm(METRICS, {}) == Connectors(
        has_metrics=True,
        offloads=True,
        tiers=("p2p", "fs"),
        host_chunk=4,
        chunk_bytes=9_437_184,
        hash_algorithm="sha256",
    )
    assert of_vllm(METRICS[:1], {}) == Connectors(has_metrics=True, hash_algorithm="sha256")
    assert of_vllm([], {}) == Connectors()


def test_settings_show_what_is_announced_and_where_to_pull_from() -> None:
    tiers = [
        {"type": "p2p"},
        {"type": "fs", "root_dir": "/kv", "enable_kv_events": True, "locality": "REMOTE"},
        {"type": "obj"},
        "no tier",
    ]
    found = of_vllm([], settings(self_describing_kv_events=True, secondary_tiers=tiers))
    assert (found.has_settings, found.offloads, found.describes, found.connector) == (
        True,
        True,
        True,
        "OffloadingConnector",
    )
    assert found.tiers == ("p2p", "fs", "obj")
    assert found.shared == (SharedTier("fs", True, "REMOTE"), SharedTier("obj", False, None))
    assert (found.pull, found.handshake_timeout) == ("10.0.0.1:5710", 3.0)
    own = of_vllm([], settings(secondary_tiers=[{"type": "p2p", "host": "fd00::1", "port": 6000}]))
    assert (own.pull, own.describes) == ("[fd00::1]:6000", False)


def test_settings_of_other_connectors_and_nonsense() -> None:
    nothing = {"vllm_config": {"kv_transfer_config": None}, "vllm_env": None}
    assert of_vllm([], nothing) == Connectors(has_settings=True)
    other = {"vllm_config": {"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}}
    assert of_vllm([], other) == Connectors(has_settings=True, connector="LMCacheConnectorV1", offloads=True)
    for wrong in ({"vllm_config": "VllmConfig(...)"}, {"vllm_config": 7}, {}):
        assert of_vllm([], wrong) == Connectors()
    odd = settings(secondary_tiers={"type": "p2p"}, self_describing_kv_events="yes")
    assert of_vllm([], odd).tiers == ()
    assert of_vllm([], odd).describes is False


def test_sglang_tells_its_host_level_and_its_storage() -> None:
    about = {
        "enable_hierarchical_cache": True,
        "hicache_write_policy": "write_back",
        "hicache_storage_backend": "mooncake",
    }
    found = of_sglang(['sglang:hicache_host_total_tokens{dp_rank="0"} 4096.0'], about)
    assert (found.offloads, found.connector) == (True, "HiCache")
    assert (found.write_policy, found.storage) == ("write_back", "mooncake")
    off = about | {"enable_hierarchical_cache": False, "hicache_storage_backend": None}
    assert not of_sglang(["sglang:hicache_host_total_tokens 0.0"], off).offloads
    assert of_sglang([], {"kv_events": {}}) == Connectors()
