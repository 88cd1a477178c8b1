//! Reading a relay's own log, over ZeroMQ: the relay sends what it keeps from a place on, and then what comes.
//!
//! Each second it is asked which messages it keeps. The answer comes behind all that was sent before; so what is behind the
//! last of them in the log was published since the question, however long the answer was on its way.

use std::future::poll_fn;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::Reader;
use super::ends::End;
use super::message::{LOOK, LogMessage};
use super::peer::Peer;
use crate::relay::{Link, say};
use kvatlas_stream::zmtp::{Connection, Event};

/// So many seconds in a row in which a relay that was asked has said nothing: it hangs.
const SILENT: u32 = 5;

impl Reader {
    /// Reads until the connection is lost.
    pub(super) async fn read_relay(&mut self, peer: &mut Peer) {
        if self.known.is_none() {
            self.known = Some(self.fleet.snapshots().sequences().await);
        }
        let read = match peer.connect().await {
            Ok(mut connection) => {
                tracing::info!(name = self.line.name, "connected to a relay");
                self.line.set_trouble(None);
                self.line.set_link(Link::Behind);
                self.read_connection(&mut connection, &mut peer.asked).await
            }
            Err(error) => Err(error),
        };
        self.line.set_link(Link::Down);
        self.line.set_trouble(read.err().map(|error| format!("{}: {error}", self.line.name)));
    }

    async fn read_connection(
        &mut self,
        connection: &mut Connection,
        asked: &mut mpsc::Receiver<String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut is_following, mut last, mut silent) = (false, 0, 0);
        loop {
            tokio::select! {
                event = poll_fn(|cx| connection.poll(cx)) => {
                    silent = 0;
                    let payload = match event {
                        Event::Open => continue,
                        Event::Ended(why) => return Err(why),
                        Event::Message(payload) => payload,
                    };
                    let head = connection.head();
                    let (Some(3), Some(subject), Some(Ok(place))) =
                        (head.frames(), head.back(1), head.back(0).map(|place| place.try_into().map(u64::from_be_bytes)))
                    else {
                        return Err("it is not a relay: its messages have other frames".to_owned());
                    };
                    if subject.is_empty() {
                        let (first, at) = kept(&payload, start).ok_or("it is not a relay: its answer has other bytes")?;
                        // It said which place is behind the last.
                        last = place.saturating_sub(1);
                        if is_following {
                            self.ends.add(End { at, first, last });
                        } else {
                            is_following = true;
                            self.ends.begin(End { at, first, last });
                            let from = self.from(first, last);
                            tracing::info!(name = self.line.name, first, last, from, "reading a relay's log");
                            connection.send(&[&[say::FOLLOW], &from.to_be_bytes()[..]].concat());
                        }
                        if self.next.unwrap_or(first) > last {
                            self.near();
                        }
                    } else {
                        let subject = String::from_utf8_lossy(subject).into_owned();
                        let pending = last.saturating_sub(place);
                        let payload = payload.into();
                        self.message(LogMessage { subject: &subject, payload, sequence: place, pending, age: 0 }).await;
                    }
                }
                Some(subject) = asked.recv() => {
                    connection.send(&[&[say::ASK], subject.as_bytes()].concat());
                }
                _ = ticks.tick() => {
                    silent += 1;
                    if silent > SILENT {
                        return Err("the relay does not answer".to_owned());
                    }
                    let now = start.elapsed().as_nanos() as u64;
                    connection.send(&[&[say::KEPT], &now.to_be_bytes()[..]].concat());
                    self.sweep().await;
                }
            }
        }
    }

    /// The place to read from, in a log that keeps messages from `first` to `last`.
    fn from(&self, first: u64, last: u64) -> u64 {
        match (self.place(first, last), self.next) {
            (Some(next), _) => next,
            // What was next is not kept any more, or the relay has restarted: what it keeps is all news.
            (None, Some(_)) => first,
            (None, None) => 0,
        }
    }
}

/// From an answer to which messages are kept: the first one, and when it was asked for.
fn kept(answer: &[u8], start: Instant) -> Option<(u64, Instant)> {
    let (first, asked) = answer.split_first_chunk::<8>()?;
    let asked = u64::from_be_bytes(asked.try_into().ok()?);
    Some((u64::from_be_bytes(*first), start.checked_add(std::time::Duration::from_nanos(asked))?))
}
