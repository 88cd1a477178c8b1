//! Addresses of an endpoint whose host is a name: looked up anew for each connection, and tried in turn.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::endpoint::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(5);

type Lookup = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// An endpoint, whose name is looked up anew for each connection.
pub(crate) struct Address {
    endpoint: Endpoint,
    /// Host and port, if the host is a name.
    name: Option<(String, u16)>,
    lookup: Option<Lookup>,
    /// Number of look-ups: addresses are tried in turn.
    turn: usize,
}

impl Address {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        let name = endpoint.as_str().strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
        let name = name.filter(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().is_err());
        let name = name.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        Self { endpoint: endpoint.clone(), name, lookup: None, turn: 0 }
    }

    /// Address on the host where another endpoint was found, if both have the same name. `at`: the address of the other.
    pub(crate) fn beside(&self, other: &Self, at: &str) -> Option<String> {
        let ((host, port), (other, _)) = (self.name.as_ref()?, other.name.as_ref()?);
        let (found, _) = at.rsplit_once(':')?;
        (host == other).then(|| format!("{found}:{port}"))
    }

    /// Next address, in ZeroMQ's form.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<String>> {
        let Some((host, port)) = &self.name else { return Poll::Ready(Ok(self.endpoint.to_string())) };
        let lookup = self.lookup.get_or_insert_with(|| {
            let name = (host.clone(), *port);
            Box::pin(async move {
                let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host(name)).await;
                Ok(found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect())
            })
        });
        let found = ready!(lookup.as_mut().poll(cx));
        self.lookup = None;
        let found =
            found.map_err(|error| io::Error::new(error.kind(), format!("{host:?} cannot be found: {error}")))?;
        self.turn = self.turn.wrapping_add(1);
        match found.get(self.turn.wrapping_sub(1) % found.len().max(1)) {
            Some(address) => Poll::Ready(Ok(format!("tcp://{address}"))),
            None => Poll::Ready(Err(io::Error::new(io::ErrorKind::NotFound, format!("{host:?} has no address")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn only_names_are_looked_up() {
        for fixed in ["tcp://127.0.0.1:5557", "tcp://[::1]:5557", "ipc:///tmp/x"] {
            let mut address = Address::new(&fixed.parse().expect("it is an endpoint"));
            assert!(address.name.is_none());
            assert_eq!(poll_fn(|cx| address.poll(cx)).await.ok(), Some(fixed.to_owned()));
        }
        let mut address = Address::new(&"tcp://localhost:5557".parse().expect("it is an endpoint"));
        for _ in 0..3 {
            let found = poll_fn(|cx| address.poll(cx)).await.expect("localhost is known");
            assert!(["tcp://127.0.0.1:5557", "tcp://[::1]:5557"].contains(&found.as_str()), "{found}");
        }
    }

    #[test]
    fn one_name_is_one_host() {
        let address = |text: &str| Address::new(&text.parse().expect("it is an endpoint"));
        let (events, replay) = (address("tcp://engine:5557"), address("tcp://engine:5558"));
        assert_eq!(replay.beside(&events, "tcp://10.0.0.7:5557").as_deref(), Some("tcp://10.0.0.7:5558"));
        assert_eq!(replay.beside(&events, "tcp://[::1]:5557").as_deref(), Some("tcp://[::1]:5558"));
        assert_eq!(replay.beside(&address("tcp://other:5557"), "tcp://10.0.0.7:5557"), None);
        assert_eq!(address("tcp://10.0.0.9:5558").beside(&events, "tcp://10.0.0.7:5557"), None);
        assert_eq!(replay.beside(&address("tcp://10.0.0.7:5557"), "tcp://10.0.0.7:5557"), None);
    }

    #[tokio::test]
    async fn unknown_names_are_errors() {
        let mut address = Address::new(&"tcp://no-such-host.invalid:5557".parse().expect("it is an endpoint"));
        let error = poll_fn(|cx| address.poll(cx)).await.expect_err("nobody has that name");
        assert!(error.to_string().contains("no-such-host"), "{error}");
    }
}
