//! Body of an engine's answer while the router forwards it to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep, sleep_until};

use super::flight::{Flight, Leg};
use crate::answers::BodyError;
use crate::answers::observe::{Failure, Observer};
use crate::answers::stored::Name;
use crate::engines::{Connection, Fault, Framing};
use crate::placing::Placement;

/// Comment in an event stream to a client that waits for the first token, which keeps the connection open.
pub(super) const COMMENT: &[u8] = b": waiting\n\n";

/// Longest time for which data that may be an error are buffered before they are sent to the client.
const HOLD: Duration = Duration::from_secs(1);

/// Action of the router while no data arrive from an engine.
enum Silence {
    /// No action: the engine has been silent only for a short time.
    Short,
    /// Comment to the client, which has waited for the first token for a while.
    WantsComment,
    /// End of the answer, as the engine has been silent for too long.
    Stall,
}

/// Body of an engine's answer while the router forwards it to the client. If the body is dropped before its end, the
/// connection to the engine is closed, which cancels the request there.
pub(crate) struct AnswerBody {
    connection: Option<Connection>,
    framing: Framing,
    /// True if the connection to the engine can be reused after this answer has been forwarded.
    keep: bool,
    shard: usize,
    observer: Observer,
    flight: Flight,
    stall: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Timer for the longest time that data of the answer are buffered; None while nothing is buffered.
    hold: Option<Pin<Box<Sleep>>>,
    heard: Instant,
    /// Interval at which a client that waits for the first token gets a comment; 0 for no comments.
    comment: Duration,
    /// Time of the last comment sent to the client; None if none was sent.
    commented: Option<Instant>,
    /// True once the body is being sent to the client.
    goes_out: bool,
    /// Work of the prefill engine on the same request, which is stopped if the answer breaks off or is cancelled; None
    /// without a prefill engine.
    prefill: Option<Leg>,
    /// Search for the id of the answer, for an engine that stores its answer; None for other answers.
    name: Option<Name>,
    /// First data of the answer, received before the body is sent to the client.
    first: Option<Bytes>,
    /// Last data for the client, which are sent after the engine's part of the answer.
    last: Option<Bytes>,
    /// True if a part of the answer other than comments has arrived.
    has_begun: bool,
    /// Error that the client gets after the data received before the answer broke off.
    broken: Option<BodyError>,
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.get_mut().poll(context).map(|data| data.map(|data| data.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining()
    }
}

impl AnswerBody {
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
            hold: None,
            heard: Instant::now(),
            comment: Duration::ZERO,
            commented: None,
            goes_out: false,
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

    /// Starts a search for the answer's id, for an engine that stores its answer.
    pub(crate) fn is_kept(&mut self) {
        self.name = Some(Name::default());
    }

    /// Makes the body send a comment to a client that waits for the first token after each silence of the length
    /// `comment`; 0 for no comments.
    pub(crate) fn comments_after(&mut self, comment: Duration) {
        self.comment = comment;
    }

    /// Attaches the work of the prefill engine on the same request, so that it is stopped if the answer breaks off.
    pub(crate) fn beside(&mut self, prefill: Leg) {
        if self.connection.is_some() {
            self.prefill = Some(prefill);
        } else if !self.flight.is_refused() {
            prefill.let_finish();
        }
    }

    /// Waits until a part of the answer can be forwarded, or the answer ends. Until then the client has received
    /// nothing, so that another engine can still answer, also if the answer [is an error](Self::failure).
    ///
    /// # Errors
    /// The answer broke off before. The record of the attempt is still available by [`AnswerBody::into_flight`].
    pub(crate) async fn begin(&mut self) -> Result<(), Fault> {
        self.first = std::future::poll_fn(|context| self.poll_piece(context)).await.transpose()?;
        Ok(())
    }

    /// Error that is the whole answer or its beginning; None for another answer.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.observer.failure().filter(|failure| failure.is_first)
    }

    /// Records that the engine has answered with the HTTP status `status`, and not with an error in the body.
    pub(crate) fn note_answered(&mut self, status: u16) {
        self.flight.answered(status);
    }

    /// Ends an answer that broke off before any part of it was forwarded to the client. Returns true if the answer has
    /// buffered events, which only report the start of work and can be forwarded if no other engine answers.
    pub(crate) fn give_up(&mut self, fault: &Fault) -> bool {
        let has_begun = self.observer.is_holding() && matches!(self.observer, Observer::Events(_));
        self.flight.note_failure(fault);
        if has_begun {
            self.broken = self.broke(fault);
        }
        has_begun
    }

    /// True if a part of the engine's answer was hidden from the client, or still may be.
    pub(crate) fn hides(&self) -> bool {
        self.observer.hides()
    }

    pub(crate) fn placement(&self) -> &Placement {
        self.flight.placement()
    }

    /// Returns the record of the attempt at the engine, and closes the connection.
    pub(crate) fn into_flight(self) -> Flight {
        self.flight
    }

    fn is_over(&self) -> bool {
        self.connection.is_none() && self.first.is_none() && self.last.is_none() && self.broken.is_none()
    }

    fn remaining(&self) -> SizeHint {
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

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.goes_out = true;
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

    /// Returns the next piece of the engine's answer that can be forwarded to the client; None at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let Some(connection) = &mut self.connection else {
                return Poll::Ready(self.last.take().map(Ok));
            };
            match connection.poll_data(context, &mut self.framing) {
                Poll::Ready(Some(Ok(data))) => {
                    let now = Instant::now();
                    if let Some(id) = self.name.as_mut().and_then(|name| name.look(&data)) {
                        self.flight.note_kept_answer(&id);
                    }
                    let data = self.observer.pass(data);
                    if self.observer.take_progress() {
                        self.heard = now;
                        self.has_begun = true;
                        self.flight.note_piece();
                    } else {
                        self.flight.note_sign_of_life();
                    }
                    match self.observer.failure() {
                        Some(failure) => self.flight.note_error(failure),
                        None => self.flight.note_tokens(self.observer.tokens(), now),
                    }
                    if matches!(self.framing, Framing::Done | Framing::Length(0)) && !self.is_empty() {
                        self.whole();
                    }
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                // An engine that dies then would look the same.
                Poll::Ready(None) if self.is_empty() => {
                    return Poll::Ready(Some(Err(Fault::Broken("it was closed before the answer's body".to_owned()))));
                }
                Poll::Ready(None) => self.whole(),
                Poll::Ready(Some(Err(fault))) => return Poll::Ready(Some(Err(fault))),
                Poll::Pending if self.observer.is_holding() && self.is_held_for_long(context) => {
                    return Poll::Ready(Some(Ok(self.observer.release())));
                }
                Poll::Pending => {
                    return match self.silence(context) {
                        Silence::Short => Poll::Pending,
                        Silence::WantsComment => Poll::Ready(Some(Ok(Bytes::from_static(COMMENT)))),
                        Silence::Stall => Poll::Ready(Some(Err(Fault::Stalled))),
                    };
                }
            }
        }
    }

    /// True if no data have arrived of an answer whose body should not be empty.
    fn is_empty(&self) -> bool {
        !self.has_begun && self.observer.expects_some()
    }

    /// True if data that may be an error have been buffered for the longest permitted time.
    fn is_held_for_long(&mut self, context: &mut Context<'_>) -> bool {
        let is_over = self.hold.get_or_insert_with(|| Box::pin(sleep(HOLD))).as_mut().poll(context).is_ready();
        if is_over {
            self.hold = None;
        }
        is_over
    }

    /// Returns the router's action for the present time in which no data have arrived from the engine.
    fn silence(&mut self, context: &mut Context<'_>) -> Silence {
        let stall = (!self.stall.is_zero()).then(|| self.heard + self.stall);
        let waits = self.goes_out && !self.comment.is_zero() && self.observer.takes_comments();
        let comment = waits.then(|| self.commented.unwrap_or(self.heard).max(self.heard) + self.comment);
        let Some(until) = [stall, comment].into_iter().flatten().min() else { return Silence::Short };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until.into())));
        // One that ends before is set anew when it has.
        if timer.deadline() > until.into() {
            timer.as_mut().reset(until.into());
        }
        while timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if stall.is_some_and(|stall| stall <= now) {
                return Silence::Stall;
            }
            if until <= now {
                self.commented = Some(now);
                return Silence::WantsComment;
            }
            timer.as_mut().reset(until.into());
        }
        Silence::Short
    }

    /// Records the end of an answer that was received completely.
    fn whole(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let rest = self.observer.rest();
        self.last = (!rest.is_empty()).then_some(rest);
        (self.timer, self.hold) = (None, None);
        if self.keep && connection.is_clean() {
            self.flight.engine().pool.put(self.shard, connection);
        }
        self.flight.note_end(self.observer.seen());
        if let Some(prefill) = self.prefill.take()
            && !self.flight.is_refused()
        {
            prefill.let_finish();
        }
    }

    /// Records the end of an answer that broke off. Returns the error for the client, or None if an event in the answer
    /// reports the error.
    fn broke(&mut self, fault: &Fault) -> Option<BodyError> {
        self.connection = None;
        (self.timer, self.hold) = (None, None);
        self.prefill = None;
        let seen = self.observer.seen();
        if (seen.over || seen.failure.is_some()) && matches!(self.observer, Observer::Events(_)) {
            // All was said; only the end of the transfer is missing.
            self.last = Some(self.observer.rest()).filter(|rest| !rest.is_empty());
            self.flight.note_end(seen);
            return None;
        }
        self.flight.broke(fault);
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
