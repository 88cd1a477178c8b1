//! The index service as a whole: a follower with an HTTP server in front of it, which are started together and stopped
//! in order; and the handler of the HTTP server's requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Request, Response};
use kvatlas_follow::{Error, Follower, log};
use kvatlas_http::{Call, Denial, Front, Handler, RequestBody, Server, Threads};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::answer::{Answer, Refusal};
use crate::app::App;
use crate::config::Config;
use crate::{dispatch, page};

/// Settings that can be changed without a restart.
#[derive(Deserialize)]
struct ServiceChange {
    http: kvatlas_http::LiveSettings,
    log: log::LogConfig,
}

/// Running index service. Its methods block, so they must not be called from inside an async runtime.
pub struct Service {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    server: Mutex<Option<Server>>,
}

impl Service {
    /// Starts the service. Engines can be registered as soon as the call returns.
    ///
    /// # Errors
    /// [`Error::Start`] if the address is not available, a certificate or key cannot be read, or threads cannot be
    /// started.
    pub fn start(config: Config) -> Result<Self, Error> {
        let Config { http, untrusted, follow } = config;
        // Errors in keys are reported before the follower starts.
        log::start(follow.log);
        let front = Front::new(http, false).map_err(not_started)?;
        let follower = Follower::start(follow, front.gate.asks_for_key_to_change())?;
        let app = App::new(follower, untrusted, front);
        let pulse = app.pulses.ingest.clone();
        app.follower.spawn(async move { pulse.beat().await });
        let server = start(&app).map_err(not_started)?;
        let address = server.address();
        let (tls, key) = (app.front.config.tls.is_some(), app.gate.asks_for_key());
        let admin_key = app.gate.asks_for_key_to_change();
        tracing::info!(%address, tls, key, admin_key, threads = app.front.threads(), "listening");
        let admin_address = server.admin_address();
        if let Some(address) = admin_address {
            tracing::info!(%address, "listening for health, readiness and metrics");
        }
        Ok(Self { app, address, admin_address, server: Mutex::new(Some(server)) })
    }

    /// Returns the address at which the HTTP server listens for all requests.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address at which the HTTP server listens for administrators, with health, readiness, metrics and
    /// version only; `None` if there is no separate listener.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Returns the follower, which reads the engines' event streams and keeps the indexes.
    #[must_use]
    pub fn follower(&self) -> &Follower {
        &self.app.follower
    }

    /// Reads keys and certificates from their files again. The service also does so by itself a few seconds after a
    /// file changes.
    ///
    /// # Errors
    /// [`Error::Start`] if a file cannot be used; the old keys and certificates then stay in force.
    pub fn reload(&self) -> Result<(), Error> {
        self.app.gate.reload().map_err(not_started)
    }

    /// Changes the settings that can be changed without a restart, given as JSON with the sections `http` and `log`.
    ///
    /// # Errors
    /// [`Error::Config`] if the settings cannot be read; nothing changes then.
    pub fn change(&self, settings: &str) -> Result<(), Error> {
        let settings: ServiceChange = serde_json::from_str(settings)
            .map_err(|error: serde_json::Error| Error::Config { message: error.to_string() })?;
        self.app.gate.change(settings.http);
        log::change(settings.log.level);
        Ok(())
    }

    /// Stops the service. It reports at once that it is not ready, and continues to answer for `delay`, so that load
    /// balancers notice. Then it accepts no more connections, finishes running requests, and ends all streams and
    /// threads.
    ///
    /// Returns false if that took longer than `timeout` and running work was cut off. A second call does nothing.
    pub fn drain(&self, timeout: Duration, delay: Duration) -> bool {
        let Some(server) = self.server.lock().take() else { return true };
        self.app.follower.leave();
        std::thread::sleep(delay);
        self.app.page.close();
        let in_time = self.app.follower.drain_after(timeout, server.drain(timeout));
        server.end();
        tracing::info!(in_time, "stopped");
        in_time
    }
}

fn not_started(error: kvatlas_http::Error) -> Error {
    Error::Start { message: error.0 }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.drain(Duration::ZERO, Duration::ZERO);
    }
}

impl Handler for App {
    type Body = Answer;

    const HTTP2: bool = false;

    /// True if a client that has closed its sending side still gets its answer, which is possible because answers take
    /// little time.
    const HALF_CLOSE: bool = true;

    fn front(&self) -> &Front {
        &self.front
    }

    fn answer(
        app: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Answer>> + Send + 'static {
        dispatch::answer(app, call, request)
    }

    fn refuse(denied: Denial) -> Response<Answer> {
        Refusal::from(denied).response()
    }
}

/// Starts the HTTP server of the service.
pub(crate) fn start(app: &Arc<App>) -> Result<Server, kvatlas_http::Error> {
    let server = Server::start(app, Threads::Shared(app.front.threads()))?;
    if let Some(threads) = server.handle() {
        let (watching, shown, beating) = (app.gate.clone(), app.clone(), app.clone());
        threads.spawn(async move { watching.watch().await });
        threads.spawn(page::run(shown));
        threads.spawn(async move { beating.pulses.http.beat().await });
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use kvatlas_fake_engine::{Client, Message};
    use kvatlas_index::{BlockHash, Tier};
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn start() -> Service {
        let config = r#"{ "http": { "bind": "127.0.0.1:0" }, "log": { "level": "off" } }"#;
        Service::start(Config::from_json(config).expect("a configuration")).expect("a free port")
    }

    fn get(service: &Service, path: &str) -> Message {
        Client::to(service.address()).get(path)
    }

    fn post(service: &Service, path: &str, body: &str) -> Message {
        Client::to(service.address()).post(path, &serde_json::from_str(body).expect("JSON"))
    }

    const ENGINE: &str =
        r#"{ "instance_id": "w", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": 4 }"#;

    #[test]
    fn a_panic_in_a_registration_is_an_internal_error_and_leaves_nothing() {
        let service = start();
        service.app.fail.store(true, Relaxed);
        let answer = post(&service, "/register", ENGINE);
        assert!(answer.status() == 500 && answer.text().contains(r#""code":"internal""#), "{answer:?}");
        assert!(get(&service, "/metrics").text().contains("kvatlas_http_panics_total 1\n"));
        // The registration left no trace.
        assert_eq!(get(&service, "/workers").text(), "[]");
        assert!(service.follower().fleet().keyspace("m", "default").is_none_or(|keyspace| !keyspace.has_streams()));
        assert_eq!(post(&service, "/register", ENGINE).status(), 201);
    }

    #[test]
    fn a_dump_that_cannot_be_finished_is_cut_off_before_its_end() {
        let service = start();
        assert_eq!(post(&service, "/register", ENGINE).status(), 201);
        let keyspace = service.follower().fleet().keyspace("m", "default").expect("registered");
        keyspace.index().store("w", 0, Tier::Gpu, None, &[BlockHash(1)], &[1]).expect("lists of one length");
        let whole = get(&service, "/dump");
        assert!(whole.whole && whole.header("transfer-encoding") == Some("chunked"), "{whole:?}");
        service.app.fail.store(true, Relaxed);
        let cut = get(&service, "/dump");
        assert!(cut.status() == 200 && !cut.whole, "{cut:?}");
        assert!(get(&service, "/metrics").text().contains("kvatlas_http_panics_total 1\n"));
        // The next dump can run.
        assert_eq!(get(&service, "/dump").body, whole.body);
    }

    #[test]
    fn under_a_key_it_is_asked_by_tokens_only() {
        let config = r#"{ "http": { "bind": "127.0.0.1:0" }, "log": { "level": "off" },
                          "streams": { "keyed_identity": true } }"#;
        let service = Service::start(Config::from_json(config).expect("a configuration")).expect("a free port");
        assert_eq!(post(&service, "/register", ENGINE).status(), 201);
        let keyspace = service.follower().fleet().keyspace("m", "default").expect("registered");
        let words = keyspace.identity().words(&[1, 2, 3, 4, 5, 6, 7, 8], 4, None, Some("s"));
        let names = [BlockHash(1), BlockHash(2)];
        keyspace.index().store("there", 0, Tier::Gpu, None, &names, &words).expect("lists of one length");

        let asked = r#"{ "model_name": "m", "token_ids": [1,2,3,4,5,6,7,8,9], "cache_salt": "s" }"#;
        let answer = post(&service, "/query", asked).text();
        assert!(answer.contains(r#""there":{"longest_matched":8"#), "{answer}");
        let others = asked.replace("\"s\"", "\"t\"");
        assert!(!post(&service, "/query", &others).text().contains("there"));
        let queries = r#"{ "model_name": "m", "queries": [{ "token_ids": [1] }, { "content_hashes": [1] }] }"#;
        let by_hash = r#"{ "model_name": "m", "content_hashes": [1] }"#;
        for (answer, words) in [
            (post(&service, "/query_by_hash", by_hash), "ask with token_ids"),
            (post(&service, "/query_batch", queries), "queries[1]: "),
            (get(&service, "/dump"), "no dump"),
            (get(&service, "/snapshot"), "no snapshot"),
        ] {
            let text = answer.text();
            assert!(answer.status() == 409 && text.contains(r#""code":"keyed_identity""#), "{answer:?}");
            assert!(text.contains(words), "{text}");
        }
    }
}
