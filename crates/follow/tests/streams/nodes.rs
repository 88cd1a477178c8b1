//! Services that publish what they follow, others that read it, and a `nats-server` between them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use kvatlas_fake_engine::{BLOCK_SIZE, Chain, Publisher, free_port, until};
use kvatlas_follow::state::{Counters, Stream};
use kvatlas_follow::{Config, Follower, report};
use kvatlas_index::View;

use crate::WORKER;

/// A server with a directory and a port of its own.
pub(crate) struct Nats {
    process: Option<Child>,
    port: u16,
    pub(crate) directory: PathBuf,
    /// File with more of the server's configuration.
    more: Option<PathBuf>,
}

impl Nats {
    /// Starts a server. None if it is not installed: then there is nothing to be tested.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(|_| None)
    }

    /// Starts a server with a configuration that is written into its directory.
    pub(crate) fn start_with(more: impl FnOnce(&Path) -> Option<PathBuf>) -> Option<Self> {
        let found = Command::new("nats-server").arg("--version").stdout(Stdio::null()).status();
        if found.is_err() {
            eprintln!("skipped: nats-server is not installed (apt-get install nats-server)");
            return None;
        }
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("kvatlas-nats-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut nats = Self { process: None, port, more: more(&directory), directory };
        nats.up();
        Some(nats)
    }

    pub(crate) fn up(&mut self) {
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &self.port.to_string(), "-sd"]).arg(&self.directory);
        if let Some(file) = &self.more {
            command.arg("-c").arg(file);
        }
        self.process = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is installed"));
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().and_then(|()| process.wait()).expect("it ends");
        }
    }

    /// Nothing of what it kept is left.
    pub(crate) fn empty(&self) {
        std::fs::remove_dir_all(&self.directory).expect("it has a directory");
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.host())
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) struct Node(pub(crate) Follower);

impl Node {
    pub(crate) fn new(relay: &str, more: &str) -> Self {
        let json = format!(
            r#"{{ "log": {{ "level": "off" }}, "adopt": {{ "share": 0 }},
                 "streams": {{ "threads": 1, "probe_interval": 0.5, "replay_timeout": 0.3, "reconnect_max": 0.2 }},
                 "relay": {{ "heartbeat": 0.2, "lost_after": 1.5, {relay} }} {more} }}"#
        );
        Self(Follower::start(Config::from_json(&json).expect("a configuration"), false).expect("it starts"))
    }

    /// Follows the engine and publishes.
    pub(crate) fn relay(nats: &Nats, engine: &Publisher, more: &str) -> Self {
        Self::new(&format!(r#""publish": "{}" {more}"#, nats.url()), "").following(engine)
    }

    pub(crate) fn following(self, engine: &Publisher) -> Self {
        self.0.register(&engine.registration(WORKER, "model"), None).expect("it is registered");
        self
    }

    pub(crate) fn reader(nats: &Nats) -> Self {
        Self::new(&format!(r#""from": "{}""#, nats.url()), "")
    }

    /// The state of its log, as `/health` tells it.
    pub(crate) fn log(&self) -> String {
        report::log(self.0.fleet()).map(|log| log.to_string()).unwrap_or_default()
    }

    /// A count since it began.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        self.0.write_metrics(&mut text).expect("text grows");
        let name = format!("kvatlas_{name}_total ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).expect("it is there");
        line.parse().expect("a number")
    }

    pub(crate) fn stream(&self) -> Option<Arc<Stream>> {
        Some(self.0.fleet().workers().first()?.streams.first()?.1.clone())
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.stream().is_some_and(|stream| stream.status.is_trusted())
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let at = Counters::NAMES.iter().position(|(known, _)| *known == name).expect("a counter");
        self.stream().map_or(0, |stream| stream.status.counters.values()[at])
    }

    /// Number of blocks of a life that are known, if whoever says so is trusted.
    pub(crate) fn depth(&self, life: u32, of: u64) -> Option<u64> {
        let worker = self.0.fleet().workers().into_iter().next()?;
        let prompt =
            worker.keyspace.identity().words(&Chain::new(life).tokens(of + 1), BLOCK_SIZE as usize, None, None);
        worker.keyspace.steady(|untrusted| {
            let found = worker.keyspace.index().find(&prompt).to_owned();
            let depth = found.depth(View::Device);
            (!untrusted.contains(WORKER, 0)).then_some(u64::from(depth))
        })
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        until(
            || condition(self),
            || {
                let stream = self.stream();
                format!("not {what}: {:?}, {}", stream.as_ref().map(|stream| &stream.status), self.log())
            },
        );
    }

    #[track_caller]
    pub(crate) fn whole(&self, life: u32, blocks: u64) {
        self.until("whole", |node| node.depth(life, blocks) == Some(blocks));
    }

    /// All blocks evicted once: whatever was applied twice remains.
    #[track_caller]
    pub(crate) fn leaves_nothing(&self, engine: &Publisher, life: u32, blocks: u64) {
        engine.evict();
        self.until("empty", |node| node.depth(life, blocks) == Some(0));
    }
}
