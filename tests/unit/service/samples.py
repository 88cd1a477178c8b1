"""A value of each setting of the service."""

from pathlib import Path

from kvatlas.service.config.schema import all_keys

ROOT = Path(__file__).parents[3]


# A value of each setting that is not its default.
OTHER = {
    "engines_file": "engines.toml",
    "model": "m",
    "block_size": "32",
    "routing_group": "blue",
    "drain_timeout": "1m",
    "drain_delay": "5s",
    "http.bind": "0.0.0.0:80",
    "http.admin_bind": "127.0.0.1:9090",
    "http.threads": "3",
    "http.key_file": "key",
    "http.admin_key_file": "admin-key",
    "http.hosts": "index.internal,atlas",
    "http.tls_cert": "cert.pem",
    "http.tls_key": "key.pem",
    "http.tls_client_ca": "ca.pem",
    "http.max_body": "1MiB",
    "http.body_memory": "128MiB",
    "http.max_head": "8 KiB",
    "http.max_headers": "50",
    "http.max_connections": "7",
    "http.request_timeout": "3s",
    "http.write_timeout": "3s",
    "http.idle_timeout": "4s",
    "http.access_log": "on",
    "http.untrusted": "flag",
    "streams.allow": "10.0.0.0/8,pod-*,ipc:///run/*",
    "streams.bind": "127.0.0.1:5557,[::1]:5557",
    "streams.threads": "3",
    "streams.stale_after": "1m",
    "streams.probe_interval": "1s",
    "streams.replay_timeout": "250ms",
    "streams.replay_total_timeout": "90s",
    "streams.replay_attempts": "9",
    "streams.reorder_grace": "0",
    "streams.reconnect_min": "20ms",
    "streams.reconnect_max": "2s",
    "streams.settle_timeout": "5s",
    "streams.buffer_batches": "10",
    "streams.buffer_bytes": "64kB",
    "streams.keyed_identity": "on",
    "limits.workers": "5",
    "limits.streams": "6",
    "limits.keyspaces": "7",
    "limits.blocks_per_rank": "1000",
    "limits.blocks_per_worker": "2000",
    "limits.buffer_bytes": "1MiB",
    "adopt.share": "0.5",
    "adopt.hash_seeds": "0,1337",
    "snapshot.dir": "snapshots",
    "snapshot.every": "10s",
    "snapshot.keep": "1m",
    "snapshot.peer": "http://other:8090",
    "snapshot.peer_key_file": "peer-key",
    "snapshot.peer_timeout": "5s",
    "snapshot.max_bytes": "1MiB",
    "relay.publish": "nats://nats:4222",
    "relay.source": "nats://nats:4222,tls://other:4222",
    "relay.credentials": "nats.creds",
    "relay.ca": "nats.pem",
    "relay.key_file": "relay-key",
    "relay.stream": "other",
    "relay.max_age": "1m",
    "relay.max_bytes": "1MiB",
    "relay.storage": "memory",
    "relay.snapshots": "on",
    "relay.buffer_bytes": "2MiB",
    "relay.heartbeat": "1s",
    "relay.lost_after": "3s",
    "relay.forget_after": "1m",
    "sites.role": "global",
    "sites.url": "http://above:8090",
    "sites.site": "north",
    "sites.key_file": "global-key",
    "sites.every": "1s",
    "sites.grain": "64",
    "sites.unknown_after": "1m",
    "sites.forget_after": "1m",
    "discovery.interval": "3s",
    "discovery.timeout": "0s",
    "discovery.request_timeout": "1.5s",
    "discovery.events_port": "5557",
    "discovery.replay_port": "5558",
    "discovery.key_file": "engine-key",
    "log.format": "json",
    "log.level": "debug",
}


KEYS = {key.path: key for key in all_keys()}


# Those that only go together.
TLS = ("http.tls_cert", "http.tls_key")


TOGETHER = {
    "http.tls_cert": TLS,
    "http.tls_key": TLS,
    "http.tls_client_ca": TLS,
    "snapshot.peer_key_file": ("snapshot.peer",),
    "relay.snapshots": ("relay.source",),
    "sites.url": ("sites.site",),
    "sites.site": ("sites.url",),
    "sites.key_file": ("sites.url", "sites.site"),
}
