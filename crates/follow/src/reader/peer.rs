//! A relay whose own log is read.

use std::future::poll_fn;

use tokio::sync::mpsc;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::relay::{Line, RelayConfig};
use crate::stream::Address;
use kvatlas_stream::zmtp::{Budget, Connection, Event, Kind, Room, Security, Socket};

/// A relay, as it can be reached.
pub(super) struct Peer {
    address: Result<Address, Error>,
    /// Subjects of which it is to be asked for all that is held.
    pub(super) asked: mpsc::Receiver<String>,
    room: Room,
    /// The key that is shown to it.
    security: Result<Security, Error>,
}

impl Peer {
    pub(super) fn new(line: &Line, asked: mpsc::Receiver<String>, relay: &RelayConfig, room: Room) -> Self {
        let address = line.name.parse().map(|endpoint: Endpoint| Address::new(&endpoint));
        let key = relay.reader_key();
        let security = key.map(|key| key.map_or(Security::Open, Security::Shows));
        Self { address, asked, room, security }
    }

    pub(super) async fn connect(&mut self) -> Result<Connection, String> {
        let security = self.security.as_ref().map_err(ToString::to_string)?.clone();
        let address = self.address.as_mut().map_err(|error| error.to_string())?;
        let at = poll_fn(|cx| address.poll(cx)).await.map_err(|error| error.to_string())?;
        let socket = Socket::dial(at).await.map_err(|error| error.to_string())?;
        let budget = Budget::new(&self.room);
        let mut connection = Connection::secured(socket, Kind::Dealer, "", budget, security);
        match poll_fn(|cx| connection.poll(cx)).await {
            Event::Open => Ok(connection),
            Event::Ended(why) if why.contains("key") => Err(format!("{why} (relay.reader_key_file)")),
            Event::Ended(why) => Err(why),
            Event::Message(_) => Err("a message came before the handshake was over".to_owned()),
        }
    }
}
