//! [`Service`]: everything started, and stopped again in order.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Response;
use hyper::header::HeaderMap;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::adopt::{self, Desk};
use crate::config::{Config, StreamConfig};
use crate::error::Error;
use crate::fleet::{EngineReport, Fleet, Registering};
use crate::gate::Denied;
use crate::http::{self, App, Server};
use crate::log;
use crate::reader;
use crate::relay::Relay;
use crate::sites::{Digests, KeyspaceDigest};
use crate::snapshot::{self, Directory, Keeper, Origin, Snapshots, read_file};

/// How long threads may take to end when a service is dropped.
const END: Duration = Duration::from_secs(2);

/// How long streams may take to be copied for a last snapshot.
const LAST_SNAPSHOT: Duration = Duration::from_secs(10);

/// A running service. Its methods wait, so they are not for calls from inside an async runtime.
pub struct Service {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    running: Mutex<Option<Running>>,
    digests: Digests,
}

struct Running {
    server: Server,
    ingest: Runtime,
    adopt: Adopting,
    keeper: Option<Keeper>,
}

/// The thread that adopts; it ends with this.
struct Adopting {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Adopting {
    fn drop(&mut self) {
        self.desk.close();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that learns blocks announced earlier has failed");
        }
    }
}

impl Service {
    /// Starts to listen; engines can be registered as soon as this returns.
    ///
    /// # Errors
    /// [`Error::Start`] if the address cannot be listened at, the certificate cannot be read, or there are no
    /// threads to be had.
    pub fn start(config: Config) -> Result<Self, Error> {
        log::start(config.log);
        let ingest = Builder::new_multi_thread()
            .worker_threads(config.streams.threads)
            .thread_name("kvatlas-ingest")
            .enable_all()
            .build()
            .map_err(|error| Error::Start {
                message: format!("cannot start the threads that follow streams: {error}"),
            })?;
        let directory = config.snapshot.dir.as_deref().map(Directory::open).transpose()?;
        let snapshots = Arc::new(Snapshots::new(config.snapshot));
        let relay = Arc::new(Relay::new(config.relay));
        ingest.block_on(relay.start(&config.streams))?;
        let streams = StreamConfig { snapshots: snapshots.clone(), relay: relay.clone(), ..config.streams };
        let mut holds = config.holds;
        holds.extend(reader::holds(&relay));
        if snapshots.is_loading() {
            holds.push(snapshot::HOLD.to_owned());
            ingest.spawn(snapshots.clone().expire());
        }
        let fleet = Fleet::new(streams.clone(), &holds, ingest.handle().clone());
        reader::start(&fleet, &relay, &streams, ingest.handle());
        let adopt = adopt::start(&fleet, config.adopt.share, &streams)?;
        let adopt = Adopting { desk: streams.desk.clone(), thread: adopt };
        let app = App::new(fleet, config.http, &streams.allow, streams.desk.clone(), &config.sites)?;
        for at in &streams.bind {
            listen_for_engines(*at, &streams, &app, &ingest)?;
        }
        let keeper = directory.map(|directory| Keeper::start(snapshots, app.fleet.clone(), directory)).transpose()?;
        let beating = app.clone();
        ingest.spawn(async move { beating.pulses.ingest.beat().await });
        let server = http::start(&app)?;
        let address = server.address();
        let (tls, key) = (app.config.tls.is_some(), app.trust.keys().asked_for());
        let admin_key = app.trust.keys().asked_for_changes();
        tracing::info!(%address, tls, key, admin_key, threads = app.threads(), "listening");
        let admin_address = server.admin_address();
        if let Some(address) = admin_address {
            tracing::info!(%address, "listening for health, readiness and metrics");
        }
        let running = Mutex::new(Some(Running { server, ingest, adopt, keeper }));
        Ok(Self { app, address, admin_address, running, digests: Digests::new(config.sites.grain) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for administrators, if it does.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Who is registered.
    #[must_use]
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.app.fleet
    }

    /// Registers what a body of `/register` says, which may name its `source` too. True if that is new.
    ///
    /// `announced_by`: the host of the engine that named the endpoints; they must be there or be allowed. None if the
    /// operator named them: that is fine.
    ///
    /// # Errors
    /// As `/register` has them.
    pub fn register(&self, json: &str, announced_by: Option<&str>) -> Result<bool, Error> {
        let registration = http::registration(json.as_bytes())
            .map_err(|refusal| Error::Invalid { code: refusal.code, message: refusal.message })?;
        if announced_by.is_some() {
            http::check_allowed(&self.app.allow, &registration, announced_by)?;
        }
        let fleet = self.app.fleet.clone();
        let registering = self.wait(async move { fleet.register(registration).await })??;
        Ok(registering == Registering::New)
    }

    /// Whether an endpoint may be followed that the engine at `announced_by` named.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if it may not, [`Error::Invalid`] if it is none.
    pub fn check_allowed(&self, endpoint: &str, announced_by: &str) -> Result<(), Error> {
        self.app.allow.check(&endpoint.parse()?, Some(announced_by))
    }

    /// Unregisters a worker, or one rank of it. Returns the number of streams ended.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not registered.
    pub fn unregister(&self, worker: &str, rank: Option<u32>) -> Result<usize, Error> {
        let fleet = self.app.fleet.clone();
        let worker = worker.to_owned();
        self.wait(async move { fleet.unregister(&worker, None, rank).await })?
    }

    /// Reads the keys and certificates from their files again, as it does by itself a few seconds after they change.
    ///
    /// # Errors
    /// [`Error::Start`] if one of them cannot be used: all stays as it was.
    pub fn reload(&self) -> Result<(), Error> {
        self.app.trust.reload().inspect_err(
            |error| tracing::error!(%error, "keys and certificates cannot be read again; the old ones stay in use"),
        )?;
        tracing::info!("keys and certificates were read again");
        Ok(())
    }

    /// Appends what `/metrics` says of engines, streams and indexes, for who has it as a part; without the line that ends it.
    ///
    /// # Errors
    /// If `out` takes no more.
    pub fn write_metrics(&self, out: &mut String) -> std::fmt::Result {
        http::embedded_metrics(&self.app, out)
    }

    /// What `/workers` says.
    #[must_use]
    pub fn workers(&self) -> Value {
        http::workers(&self.app.fleet, None, None)
    }

    /// Discovery says how far it is with an engine: an [`EngineReport`] in JSON.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none.
    pub fn report_engine(&self, report: &str) -> Result<(), Error> {
        let report: EngineReport = serde_json::from_str(report).map_err(|error| Error::config(error.to_string()))?;
        self.app.fleet.report(report);
        Ok(())
    }

    /// Discovery follows an engine, or a configured stream, no more. False if it did not.
    pub fn forget_engine(&self, worker: &str, rank: Option<u32>) -> bool {
        self.app.fleet.forget(worker, rank)
    }

    /// Loads a snapshot of another service from a file, where `snapshot.from_peer` has streams wait for one. `url`: where it
    /// is from. Returns the number of streams in it.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it cannot be used; the streams begin without it.
    pub fn load_snapshot(&self, file: &Path, url: &str) -> Result<u64, Error> {
        let snapshots = self.app.fleet.snapshots();
        let read = read_file(file, snapshots.config.max_bytes).map_err(|error| format!("{}: {error}", file.display()));
        let read = read.map_err(|message| Error::Snapshot { message });
        let loaded = read.and_then(|bytes| snapshots.read(&bytes, Origin { kind: "peer", file: url.to_owned() }));
        self.no_snapshot(loaded.as_ref().err().map(ToString::to_string).as_deref());
        loaded
    }

    /// The streams need not wait for a snapshot of another service any more. `why`: why there is none.
    pub fn no_snapshot(&self, why: Option<&str>) {
        let snapshots = self.app.fleet.snapshots();
        if let Some(why) = why {
            snapshots.counts.refused.fetch_add(1, Relaxed);
            tracing::error!(why, "the snapshot of another service cannot be used; the streams begin without it");
        }
        snapshots.loaded(&self.app.fleet);
    }

    /// What has changed in each keyspace since the last call, for the service above many sites; of a keyspace that `whole`
    /// has, by model and routing group, all there is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the site cannot be called so.
    pub fn site_digests(&self, site: &str, whole: &[(String, String)]) -> Result<Vec<KeyspaceDigest>, Error> {
        let is_whole = |model: &str, group: &str| whole.iter().any(|(a, b)| a == model && b == group);
        let keyspaces = self.app.fleet.keyspaces();
        let next = |it: &std::sync::Arc<crate::state::Keyspace>| {
            self.digests.next(site, it, is_whole(&it.model, &it.routing_group))
        };
        keyspaces.iter().map(next).collect()
    }

    /// Answers `GET /snapshot`, for a server of the caller's own: the whole, or the part that the headers ask for.
    /// `patience`: how long a request may take; a client that would wait longer is told to ask again.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn snapshot(
        &self,
        headers: &HeaderMap,
        head: bool,
        patience: Duration,
    ) -> Result<Response<Bytes>, Denied> {
        Ok(http::snapshot(&self.app.fleet, headers, head, patience).await?)
    }

    /// What `/engines` says.
    #[must_use]
    pub fn engines(&self) -> Value {
        http::engines(&self.app.fleet)
    }

    /// What answers wait for, as `/ready?strict=1` says it; nothing if they are whole.
    #[must_use]
    pub fn waiting(&self) -> Option<Value> {
        http::waiting(&self.app.fleet)
    }

    /// Says from now on that it is not ready. All else goes on.
    pub fn leave(&self) {
        self.app.fleet.drain();
    }

    /// Says that it is not ready, goes on for `delay`, so that whoever looks at readiness stops asking; then accepts no
    /// more connections, answers what was asked, ends all streams and threads.
    ///
    /// False if that took longer than `timeout` and something was cut off. Does nothing the second time.
    pub fn drain(&self, timeout: Duration, delay: Duration) -> bool {
        let Some(Running { server, ingest, adopt, keeper }) = self.take() else { return true };
        self.leave();
        std::thread::sleep(delay);
        self.app.page.close();
        if let Some(keeper) = keeper {
            // While the streams are still followed. Who is to close at once writes no more.
            keeper.stop((!timeout.is_zero()).then(|| Instant::now() + timeout.min(LAST_SNAPSHOT)));
        }
        let until = Instant::now() + timeout;
        let fleet = self.app.fleet.clone();
        let in_time = ingest.block_on(async {
            let answered = server.drain(timeout).await;
            let ended = tokio::time::timeout_at(until.into(), fleet.stop()).await.is_ok();
            answered && ended
        });
        server.end();
        drop(adopt);
        ingest.shutdown_timeout(END);
        tracing::info!(in_time, "stopped");
        in_time
    }

    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(running) = running.as_ref() else { return Err(Error::Closed) };
            running.ingest.spawn(async move {
                let _ = sender.send(work.await);
            });
        }
        receiver.recv().map_err(|_| Error::Closed)
    }

    fn take(&self) -> Option<Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Accepts the connections of engines that do not listen themselves.
fn listen_for_engines(at: SocketAddr, config: &StreamConfig, app: &Arc<App>, ingest: &Runtime) -> Result<(), Error> {
    let listener = ingest
        .block_on(TcpListener::bind(at))
        .map_err(|error| Error::Start { message: format!("streams.bind: cannot listen at {at}: {error}") })?;
    let port = listener.local_addr().map_or(at.port(), |at| at.port());
    tracing::info!(address = %at, port, "listening for engines that connect");
    let publishers = app.fleet.publishers().clone();
    publishers.listens_at(port);
    let app = app.clone();
    let accept = publishers.accept(listener, port, config.clone(), move |peer| app.allow.has_peer(peer));
    ingest.spawn(accept);
    Ok(())
}

impl Drop for Service {
    fn drop(&mut self) {
        self.drain(Duration::ZERO, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_index::{BlockHash, Tier};
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn start() -> Service {
        let config = r#"{ "http": { "bind": "127.0.0.1:0" }, "log": { "level": "off" } }"#;
        Service::start(Config::from_json(config).expect("a configuration")).expect("a free port")
    }

    /// The answer, up to where the connection ends.
    fn ask(service: &Service, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(service.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("an option");
        let (more, length) = ("Host: localhost\r\nConnection: close\r\nContent-Type: application/json", body.len());
        let request = format!("{method} {path} HTTP/1.1\r\n{more}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer in UTF-8");
        answer
    }

    const ENGINE: &str =
        r#"{ "instance_id": "w", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4 }"#;

    #[test]
    fn a_panic_in_a_registration_is_an_internal_error_and_leaves_nothing() {
        let service = start();
        service.fleet().fail_next_registration();
        let answer = ask(&service, "POST", "/register", ENGINE);
        assert!(answer.starts_with("HTTP/1.1 500") && answer.contains(r#""code":"internal""#), "{answer}");
        assert!(ask(&service, "GET", "/metrics", "").contains("kvatlas_http_panics_total 1\n"));
        // As if nobody had asked.
        assert!(ask(&service, "GET", "/workers", "").ends_with("\r\n\r\n[]"));
        assert!(service.fleet().keyspace("m", "default").is_none_or(|keyspace| !keyspace.has_streams()));
        let answer = ask(&service, "POST", "/register", ENGINE);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        service.fleet().fail_next_registration();
        let other = ENGINE.replace("\"w\"", "\"v\"");
        assert_eq!(service.register(&other, None), Err(Error::Internal));
        assert_eq!(service.unregister("w", None), Ok(1));
    }

    #[test]
    fn a_dump_that_cannot_be_finished_is_cut_off_before_its_end() {
        let service = start();
        assert!(ask(&service, "POST", "/register", ENGINE).starts_with("HTTP/1.1 201"));
        let keyspace = service.fleet().keyspace("m", "default").expect("registered");
        keyspace.index().store("w", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).expect("lists of one length");
        let whole = ask(&service, "GET", "/dump", "");
        assert!(
            whole.contains("Transfer-Encoding: chunked") || whole.contains("transfer-encoding: chunked"),
            "{whole}"
        );
        assert!(whole.ends_with("\r\n0\r\n\r\n"), "{whole}");
        keyspace.fail.store(true, Relaxed);
        let cut = ask(&service, "GET", "/dump", "");
        assert!(cut.starts_with("HTTP/1.1 200") && !cut.ends_with("0\r\n\r\n"), "{cut}");
        assert!(ask(&service, "GET", "/metrics", "").contains("kvatlas_http_panics_total 1\n"));
        // The next one has its turn.
        let body = |answer: &str| answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        assert_eq!(body(&ask(&service, "GET", "/dump", "")), body(&whole));
    }

    #[test]
    fn what_is_under_a_key_is_not_kept_for_another_process() {
        for kept in [r#"{ "dir": "/d" }"#, r#"{ "from_peer": true }"#] {
            let config = format!(r#"{{ "streams": {{ "keyed_identity": true }}, "snapshot": {kept} }}"#);
            let error = Config::from_json(&config).expect_err("both").to_string();
            assert!(error.contains("streams.keyed_identity goes with no snapshot"), "{error}");
        }
    }

    #[test]
    fn under_a_key_it_is_asked_by_tokens_only() {
        let config = r#"{ "http": { "bind": "127.0.0.1:0" }, "log": { "level": "off" },
                          "streams": { "keyed_identity": true } }"#;
        let service = Service::start(Config::from_json(config).expect("a configuration")).expect("a free port");
        assert!(ask(&service, "POST", "/register", ENGINE).starts_with("HTTP/1.1 201"));
        let keyspace = service.fleet().keyspace("m", "default").expect("registered");
        let words = keyspace.identity().words(&[1, 2, 3, 4, 5, 6, 7, 8], 4, None, Some("s"));
        let names = [BlockHash(1), BlockHash(2)];
        keyspace.index().store("there", 0, Tier::Gpu, None, &names, &words).expect("lists of one length");

        let asked = r#"{ "model_name": "m", "token_ids": [1,2,3,4,5,6,7,8,9], "cache_salt": "s" }"#;
        let answer = ask(&service, "POST", "/query", asked);
        assert!(answer.contains(r#""there":{"longest_matched":8"#), "{answer}");
        let others = asked.replace("\"s\"", "\"t\"");
        assert!(!ask(&service, "POST", "/query", &others).contains("there"));
        let queries = r#"{ "model_name": "m", "queries": [{ "token_ids": [1] }, { "content_hashes": [1] }] }"#;
        for (method, path, body, words) in [
            ("POST", "/query_by_hash", r#"{ "model_name": "m", "content_hashes": [1] }"#, "ask with token_ids"),
            ("POST", "/query_batch", queries, "queries[1]: "),
            ("GET", "/dump", "", "no dump"),
            ("GET", "/snapshot", "", "no snapshot"),
        ] {
            let answer = ask(&service, method, path, body);
            assert!(answer.starts_with("HTTP/1.1 409") && answer.contains(r#""code":"keyed_identity""#), "{answer}");
            assert!(answer.contains(words), "{answer}");
        }
    }
}
