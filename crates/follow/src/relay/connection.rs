//! Connection between a service and a NATS server.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::config::RelayConfig;
use crate::error::Error;

/// Maximum number of queued requests to relays (services that publish streams) for a stream's full state, which is all
/// blocks held by its ranks. Further requests are dropped, as readers repeat them.
const QUESTIONS: usize = 1024;
/// Maximum wait before a lost connection is tried again.
const LONGEST: Duration = Duration::from_secs(2);

/// State of the connection to a NATS server, and of the log there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The service is not connected to a NATS server.
    Down,
    /// Connected, but the reader has not read all messages of the log yet, or the log to publish to does not exist yet.
    Behind,
    /// Connected, and the reader has read all messages of the log, or the log to publish to exists.
    Up,
}

/// Connection to NATS, which is re-established whenever it is lost.
#[derive(Debug)]
pub(crate) struct NatsLink {
    state: watch::Sender<LinkState>,
    trouble: Mutex<Option<String>>,
    questions: mpsc::Sender<String>,
}

impl NatsLink {
    /// Creates a connection that is not open yet, and the receiver of requests for full states. A request is the NATS
    /// subject of a stream whose publisher (relay) must publish all blocks held by the stream's ranks.
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<String>) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (state, trouble) = (watch::Sender::new(LinkState::Down), Mutex::default());
        (Arc::new(Self { state, trouble, questions }), asked)
    }

    /// Returns a receiver that is notified of changes of the connection's state.
    pub(crate) fn watch(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    pub(crate) fn is(&self, state: LinkState) -> bool {
        *self.state.borrow() == state
    }

    pub(crate) fn set(&self, state: LinkState) {
        self.state.send_if_modified(|before| std::mem::replace(before, state) != state);
    }

    /// Returns the description of the connection's current problem; `None` if the connection works.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Records a problem of the connection, or its end as `None`. The same problem is logged once, not for each attempt
    /// to connect.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut *self.trouble.lock(), trouble.clone());
        if let Some(error) = trouble.filter(|error| Some(error) != before.as_ref()) {
            tracing::error!(error, "the log cannot be used; it is tried again");
        }
    }

    /// Asks the relay of a stream (the service that publishes it) to publish all blocks held by the stream's ranks.
    /// Returns false if the request cannot be sent now.
    pub(crate) fn ask(&self, subject: &str) -> bool {
        self.questions.try_send(subject.to_owned()).is_ok()
    }
}

/// Begins to connect to NATS. The call does not wait for a connection, and servers may be unreachable at any time.
///
/// # Errors
/// [`Error::Start`] if a file with credentials or certificates cannot be read, or an address is not valid.
pub(super) async fn connect(config: &RelayConfig, link: &Arc<NatsLink>, url: &str) -> Result<Client, Error> {
    let wrong = |what: &str, error: String| Error::Start { message: format!("relay: {what}: {error}") };
    let (of_events, of_attempts) = (link.clone(), link.clone());
    let mut options = ConnectOptions::new()
        .name("kvatlas")
        .retry_on_initial_connect()
        .client_capacity(256)
        .subscription_capacity(1024)
        .ping_interval(Duration::from_secs(2))
        .connection_timeout(Duration::from_secs(2))
        .reconnect_delay_callback(|attempts| LONGEST.min(Duration::from_millis(50 << attempts.min(6))))
        .event_callback(move |event| {
            let link = of_events.clone();
            async move {
                match event {
                    // A reader has yet to catch up.
                    Event::Connected => {
                        tracing::info!("connected to NATS");
                        link.set_trouble(None);
                        link.set(LinkState::Behind);
                    }
                    Event::Disconnected => {
                        tracing::warn!("the connection to NATS is lost; it is tried again");
                        link.set(LinkState::Down);
                    }
                    Event::ServerError(error) => link.set_trouble(Some(format!("the server says: {error}"))),
                    // An attempt to connect has failed; its reason comes with the next one, below.
                    Event::ClientError(_) => {}
                    other => tracing::warn!(event = %other, "NATS"),
                }
            }
        })
        .reconnect_to_server_callback(move |servers, _| {
            // Before each attempt: why the last one failed is known nowhere else.
            let failed = servers.iter().find_map(|it| {
                // Without the password that its URL may have.
                let (host, port) = (it.addr.host(), it.addr.port());
                Some(format!("{host}:{port}: {}", reason(it.last_error.as_ref()?)))
            });
            if failed.is_some() {
                of_attempts.set_trouble(failed);
            }
            // Which server is the library's choice.
            async { None }
        });
    if let Some(file) = &config.credentials {
        let credentials = std::fs::read_to_string(file);
        let credentials = credentials.map_err(|error| wrong(&file.display().to_string(), error.to_string()))?;
        options = options.credentials(&credentials).map_err(|error| wrong("credentials", error.to_string()))?;
    }
    if let Some(ca) = &config.ca {
        std::fs::metadata(ca).map_err(|error| wrong(&ca.display().to_string(), error.to_string()))?;
        options = options.add_root_certificates(ca.clone());
    }
    let addresses: Vec<&str> = url.split(',').map(str::trim).collect();
    options.connect(addresses).await.map_err(|error| wrong(url, error.to_string()))
}

/// Describes a failed attempt to connect, with advice on what to do.
fn reason(error: &str) -> String {
    let advice = if error.contains("certificate") {
        "; relay.ca names the authorities whose certificates are trusted"
    } else if error.to_lowercase().contains("authorization") {
        "; relay.credentials is missing, or the server does not take it"
    } else {
        ""
    };
    format!("{error}{advice}")
}
