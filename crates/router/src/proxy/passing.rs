//! An answer on its way from the engine to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::SizeHint;
use tokio::time::{Sleep, sleep};

use super::flight::Flight;
use super::handover::Leg;
use crate::answer::BodyError;
use crate::engine::{Connection, Fault, Framing};
use crate::observe::Observer;
use crate::place::Placement;
use crate::stored::Name;

/// An answer on its way. If it is dropped before its end, so is the connection to the engine, which ends the request
/// there.
pub(crate) struct Passing {
    connection: Option<Connection>,
    framing: Framing,
    /// Whether the connection can be used again after this.
    keep: bool,
    shard: usize,
    observer: Observer,
    flight: Flight,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    heard: Instant,
    /// The prefill engine that works for it: it need not go on if this ends before its end.
    prefill: Option<Leg>,
    /// The name of an answer that the engine keeps is looked for here.
    name: Option<Name>,
    /// What came first and has not gone out.
    first: Option<Bytes>,
    /// What has still to go out when the engine's part is over.
    last: Option<Bytes>,
    /// Whether a byte of it came.
    has_begun: bool,
    /// Why it broke off, until what came before has gone out.
    broken: Option<BodyError>,
}

impl Passing {
    pub(crate) fn new(
        connection: Connection,
        framing: Framing,
        keep: bool,
        shard: usize,
        observer: Observer,
        flight: Flight,
        stall: Duration,
    ) -> Self {
        let connection = Some(connection);
        let mut passing = Self {
            connection,
            framing,
            keep,
            shard,
            observer,
            flight,
            stall,
            timer: None,
            heard: Instant::now(),
            prefill: None,
            name: None,
            first: None,
            last: None,
            has_begun: false,
            broken: None,
        };
        if matches!(passing.framing, Framing::Done | Framing::Length(0)) {
            passing.whole();
        }
        passing
    }

    /// The same, and the engine keeps the answer: its name is looked for.
    pub(crate) fn kept(self) -> Self {
        Self { name: Some(Name::default()), ..self }
    }

    /// A prefill engine works for it.
    pub(crate) fn beside(&mut self, prefill: Leg) {
        if self.connection.is_some() {
            self.prefill = Some(prefill);
        } else if !self.flight.is_refused() {
            prefill.let_finish();
        }
    }

    /// Until something of it can be passed on, or it is over. As long as this has not come to an end the client knows
    /// nothing of the answer, and another engine can still give one.
    ///
    /// # Errors
    /// It broke off before. Its flight goes on: [`Passing::into_flight`].
    pub(crate) async fn begin(&mut self) -> Result<(), Fault> {
        self.first = std::future::poll_fn(|context| self.poll_piece(context)).await.transpose()?;
        Ok(())
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.flight.placement()
    }

    /// The request at the engine. The connection there is closed.
    pub(crate) fn into_flight(self) -> Flight {
        self.flight
    }

    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_none() && self.first.is_none() && self.last.is_none() && self.broken.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let here = [&self.first, &self.last].into_iter().flatten().map(Bytes::len).sum::<usize>() as u64;
        match (&self.connection, &self.framing) {
            (None, _) => SizeHint::with_exact(here),
            // What is kept from the client is part of what the engine sends.
            (Some(_), Framing::Length(left)) if !self.observer.hides() => {
                SizeHint::with_exact(here + self.observer.held_back() as u64 + left)
            }
            _ => SizeHint::default(),
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            match ready!(self.poll_piece(context)) {
                None => return Poll::Ready(None),
                Some(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Some(Err(fault)) => {
                    self.broken = self.broke(&fault);
                    if self.broken.is_some() {
                        // An error throws away what has not been written yet, the answer's head too: that goes first.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// The next piece that can be passed on.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let Some(connection) = &mut self.connection else {
                return Poll::Ready(self.last.take().map(Ok));
            };
            match connection.poll_data(context, &mut self.framing) {
                Poll::Ready(Some(Ok(data))) => {
                    self.heard = Instant::now();
                    self.has_begun = true;
                    if let Some(id) = self.name.as_mut().and_then(|name| name.look(&data)) {
                        self.flight.stored(&id);
                    }
                    let data = self.observer.pass(data);
                    self.flight.heard();
                    self.flight.generated(self.observer.tokens(), self.heard);
                    if matches!(self.framing, Framing::Done | Framing::Length(0)) {
                        self.whole();
                    }
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                // An engine that dies then would look the same.
                Poll::Ready(None) if !self.has_begun && self.observer.expects_some() => {
                    return Poll::Ready(Some(Err(Fault::Broken("it was closed before the answer's body".to_owned()))));
                }
                Poll::Ready(None) => self.whole(),
                Poll::Ready(Some(Err(fault))) => return Poll::Ready(Some(Err(fault))),
                Poll::Pending if self.stalls(context) => return Poll::Ready(Some(Err(Fault::Stalled))),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Whether nothing came for too long.
    fn stalls(&mut self, context: &mut Context<'_>) -> bool {
        if self.stall.is_zero() {
            return false;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.stall)));
        while timer.as_mut().poll(context).is_ready() {
            let until = self.heard + self.stall;
            if until <= Instant::now() {
                return true;
            }
            timer.as_mut().reset(until.into());
        }
        false
    }

    /// The answer is whole.
    fn whole(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let rest = self.observer.rest();
        self.last = (!rest.is_empty()).then_some(rest);
        self.timer = None;
        if self.keep && connection.is_clean() {
            self.flight.engine().pool.put(self.shard, connection);
        }
        if let Some(prefill) = self.prefill.take()
            && !self.flight.is_refused()
        {
            prefill.let_finish();
        }
        self.flight.done(self.observer.seen());
    }

    /// The answer broke off. None if the client is told in the answer itself.
    fn broke(&mut self, fault: &Fault) -> Option<BodyError> {
        self.connection = None;
        self.timer = None;
        self.prefill = None;
        let seen = self.observer.seen();
        if seen.over && matches!(self.observer, Observer::Events(_)) {
            // All was said; only the end of the transfer is missing.
            self.last = Some(self.observer.rest()).filter(|rest| !rest.is_empty());
            self.flight.done(seen);
            return None;
        }
        self.flight.broke(fault, seen);
        let message = format!("engine {}: {fault}", self.flight.engine().name);
        match self.observer.last_words(&message, "engine_failed") {
            Some(last) => {
                self.last = Some(last);
                None
            }
            None => Some(message.into()),
        }
    }
}
