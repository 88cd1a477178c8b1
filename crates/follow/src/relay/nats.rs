//! Connecting to NATS.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};

use super::{Line, Link, RelayConfig};
use crate::error::Error;

/// Longest wait before a connection is tried again.
const LONGEST: Duration = Duration::from_secs(2);

/// Begins to connect. Servers may be away for now, and later.
///
/// # Errors
/// [`Error::Start`] if a file cannot be read, or an address is none.
pub(super) async fn connect(config: &RelayConfig, line: &Arc<Line>, url: &str) -> Result<Client, Error> {
    let wrong = |what: &str, error: String| Error::Start { message: format!("relay: {what}: {error}") };
    let (told, asked) = (line.clone(), line.clone());
    let mut options = ConnectOptions::new()
        .name("kvatlas")
        .retry_on_initial_connect()
        .client_capacity(256)
        .subscription_capacity(1024)
        .ping_interval(Duration::from_secs(2))
        .connection_timeout(Duration::from_secs(2))
        .reconnect_delay_callback(|attempts| LONGEST.min(Duration::from_millis(50 << attempts.min(6))))
        .event_callback(move |event| {
            let line = told.clone();
            async move {
                match event {
                    // Who reads has yet to catch up.
                    Event::Connected => {
                        tracing::info!("connected to NATS");
                        line.set_trouble(None);
                        line.set_link(Link::Behind);
                    }
                    Event::Disconnected => {
                        tracing::warn!("the connection to NATS is lost; it is tried again");
                        line.set_link(Link::Down);
                    }
                    Event::ServerError(error) => line.set_trouble(Some(format!("the server says: {error}"))),
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
                asked.set_trouble(failed);
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

/// The meaning of a failed attempt to connect, in words that say what can be done.
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
