//! Service of one request by engines, with retries, up to the first byte of an answer.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::attempts::{Attempts, LastAttempt};
use super::exchange::{Patience, exchange};
use super::flight::{Arrival, DecodeFailure, Flight, Verdict, beside_prefill};
use super::handover::{self, PrefillState};
use super::respond::{pass, refuse_failed, refused, respond, respond_failed};
use super::{Forwarder, tokens, transfer_field, warm_up};
use crate::answers::Answer;
use crate::answers::observe::AnswerFormat;
use crate::answers::refusal::Refusal;
use crate::engines::fleet::Fleet;
use crate::engines::request_head::{EngineRequest, REQUEST_ID};
use crate::engines::{Connection, Engine, Fault, Head, whole};
use crate::placing::{EngineWait, WarmUp, may_be_served_elsewhere};
use crate::requests::facts::RequestFacts;
use crate::requests::routes::ModelAt;
use crate::requests::task::Task;

/// Maximum pause that is granted to an engine that requests a pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Request that the router has to send to an engine.
pub(super) struct Job<'a> {
    pub(super) proxy: &'a Arc<Forwarder>,
    pub(super) shard: usize,
    pub(super) outgoing: EngineRequest<'a>,
    pub(super) body: &'a Bytes,
    pub(super) facts: &'a RequestFacts,
    pub(super) reading: AnswerFormat,
    pub(super) task: Task,
    /// True if the blocks of the prompt can be transferred from a prefill engine by vLLM's protocol.
    pub(super) takes_over: bool,
    pub(super) forwards_ids: bool,
    /// True if the engine stores the result of the request for the client, such as a response or a file.
    pub(super) keeps: bool,
    /// Place where the request names the model: a field of a JSON body, a field of a form, or nowhere.
    pub(super) model: ModelAt,
    pub(super) arrival: &'a Arrival,
}

impl Job<'_> {
    /// Sends the request to engines until one answers, and returns this answer with its first byte. `began`: set to the
    /// first engine to which the request is sent.
    pub(super) async fn run(
        &self,
        mut attempts: Attempts,
        began: &OnceLock<Arc<Engine>>,
    ) -> Result<Response<Answer>, Refusal> {
        let Self { proxy, shard, ref outgoing, body, facts, reading, takes_over, forwards_ids, keeps, model, .. } =
            *self;
        let arrival = self.arrival;
        let mut task = self.task;
        let (new_id, headers) = (outgoing.id, outgoing.headers);
        let mut last: Option<Refusal> = None;
        let mut unpaired: Option<Refusal> = None;
        // The last answer that an engine gave, which was an error: better than none.
        let mut failed: Option<Response<Answer>> = None;
        // Its place among those that wait because no engine is up, if it did.
        let mut waited: Option<EngineWait<'_>> = None;
        let give_up = |why: LastAttempt, refusal: Refusal| {
            why.count(&proxy.counts, &facts.model, new_id.or_else(|| headers.get(REQUEST_ID)), &refusal);
            refusal
        };
        loop {
            // Made where it is awaited: it is large.
            let choosing = || proxy.places.choose(shard, facts, task, attempts.tried());
            let chosen = match &waited {
                None => choosing().await,
                Some(place) => place.in_turn(Box::pin(choosing())).await,
            };
            let mut placement = match chosen {
                Ok(placement) => placement,
                Err(_) if attempts.go_back() => continue,
                Err(refusal) if failed.is_none() && attempts.may_wait() && refusal.is_for_want_of_engines() => {
                    self.wait_for_engine(&mut waited, &mut attempts, task, last.take(), refusal).await?;
                    continue;
                }
                // Why the last one failed says more than that there is no other.
                Err(refusal) => {
                    let refusal = unpaired.unwrap_or(refusal);
                    let refusal = last.map_or(refusal, |last| give_up(LastAttempt::NoOtherEngine, last));
                    return failed.ok_or(refusal);
                }
            };
            let (engine, rank) = (placement.engine.clone(), placement.rank);
            began.get_or_init(|| engine.clone());
            if let Some(warm_up) = placement.warm_up.take() {
                self.warm_up(warm_up);
            }
            let mut flight = Flight::new(proxy.clone(), placement, arrival);
            let renamed = rename(&engine, facts, model, outgoing.headers, body);
            let body = renamed.as_ref().unwrap_or(body);
            let prefill_by = match task {
                Task::Generate => handover::prefill_by(proxy.config.decode_alone, &engine, takes_over, || {
                    flight.placement().uncached(facts)
                }),
                _ => None,
            };
            let prepared = match prefill_by {
                Some(by) => {
                    let preparing = handover::prepare(proxy, shard, outgoing, body, facts, by, arrival, &mut attempts);
                    let prepared = Box::pin(preparing).await;
                    proxy.counts.handovers[prepared.number()].fetch_add(1, Relaxed);
                    prepared
                }
                None => PrefillState::Alone,
            };
            if forwards_ids && matches!(prepared, PrefillState::Body(_) | PrefillState::Meanwhile(..)) {
                proxy.tokens.goes_apart();
            }
            let (asked, mut prefill) = match prepared {
                PrefillState::Alone if forwards_ids => {
                    let body = tokens::body_of_ids(proxy, &engine, facts, body);
                    (transfer_field::written(&proxy.fleet, flight.placement(), &body).unwrap_or(body), None)
                }
                PrefillState::Alone => match transfer_field::written(&proxy.fleet, flight.placement(), body) {
                    Some(body) => (body, None),
                    None => (body.clone(), None),
                },
                PrefillState::Body(body) => (body, None),
                PrefillState::Meanwhile(body, prefill) => (body, Some(prefill)),
                PrefillState::Refused(refusal) => {
                    flight.note_refusal_elsewhere();
                    // Without a prefill engine, only one that does both can take it.
                    task = Task::Alone;
                    unpaired = Some(refusal);
                    continue;
                }
            };
            // What goes wrong at a prefill engine is not the decode engine's fault.
            let awaited = prefill.as_ref().map(|leg| leg.engine.clone());
            let mut bytes = Vec::new();
            outgoing.write(&engine, rank, asked.len(), flight.trace_context().as_deref(), &mut bytes);
            let fresh = attempts.needs_new_connection();
            let first_byte = proxy.config.upstream.first_byte_timeout;
            let patience = Patience::new(first_byte, &engine);
            let is_lost = attempts.is_lost();
            // Pinned where it is made, as it is large.
            let answered = pin!(async {
                if is_lost {
                    return Err(Fault::Prefill { sent: false });
                }
                exchange(first_byte, &engine, shard, &bytes, &asked, outgoing.method, fresh).await
            });
            let answered = beside_prefill(answered, &mut prefill).await;
            let fault = match answered {
                Ok((connection, answer)) => {
                    if let Some(place) = waited.take() {
                        place.placed();
                    }
                    // Of any other it is not known yet whether it is an answer.
                    if answer.status.is_success() {
                        flight.note_head(answer.status.as_u16());
                    } else {
                        flight.answered(answer.status.as_u16());
                    }
                    let pause = pause_wanted(answer.status, answer.headers.get(RETRY_AFTER));
                    if let Some(pause) = pause {
                        engine.health.set_busy(pause);
                    }
                    let busy = Fault::Busy(answer.status.as_u16());
                    if answer.status.as_u16() >= 400 {
                        prefill = None;
                    }
                    if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST)
                        && attempts.may_look_further()
                        && may_be_served_elsewhere(&proxy.fleet, facts, task, &asked_so_far(&engine, attempts.tried()))
                    {
                        let mut reading = Box::pin(read_refusal(shard, &engine, connection, answer));
                        let refusal = patience.wait(reading.as_mut()).await;
                        match refusal {
                            Ok(said) if said.denies_model() => {
                                engine.note_denied(facts.body.model.as_deref().unwrap_or_default());
                                flight.note_failure(&Fault::NoModel);
                                Fault::NoModel
                            }
                            Ok(said) => return Ok(refused(&proxy.config, said, flight, new_id.cloned(), headers)),
                            Err(fault) => {
                                flight.note_failure(&fault);
                                fault
                            }
                        }
                    } else if is_worth_another(answer.status)
                        && attempts.may_go_on_after(&busy)
                        && has_other(&proxy.fleet, &engine, attempts.tried())
                    {
                        flight.note_failure(&busy);
                        busy
                    } else {
                        let status = answer.status;
                        let is_kept = keeps && status.is_success();
                        let (mut passing, told) = pass(&proxy.config, shard, connection, answer, reading, flight);
                        if is_kept {
                            passing.is_kept();
                        }
                        let begun = beside_prefill(pin!(patience.wait(pin!(passing.begin()))), &mut prefill).await;
                        match begun {
                            Ok(()) if passing.failure().is_some_and(|failure| !failure.is_of_the_request()) => {
                                let fault = Fault::Error(passing.failure().map_or(500, |failure| failure.status));
                                failed = Some(respond_failed(&proxy.config, told, passing, new_id.cloned(), headers));
                                fault
                            }
                            Ok(()) => {
                                if status.is_success() {
                                    passing.note_answered(status.as_u16());
                                }
                                if !status.is_server_error() {
                                    attempts.answered();
                                }
                                if let Some(prefill) = prefill.take() {
                                    passing.beside(prefill);
                                }
                                return Ok(respond(&proxy.config, told, passing, new_id.cloned(), headers));
                            }
                            Err(DecodeFailure::Refused(verdict)) => {
                                return Ok(refused(
                                    &proxy.config,
                                    verdict,
                                    passing.into_flight(),
                                    new_id.cloned(),
                                    headers,
                                ));
                            }
                            Err(DecodeFailure::Failed(fault)) => {
                                if passing.give_up(&fault) {
                                    failed =
                                        Some(respond_failed(&proxy.config, told, passing, new_id.cloned(), headers));
                                }
                                fault
                            }
                        }
                    }
                }
                Err(DecodeFailure::Refused(verdict)) => {
                    return Ok(refused(&proxy.config, verdict, flight, new_id.cloned(), headers));
                }
                Err(DecodeFailure::Failed(fault)) => {
                    flight.note_failure(&fault);
                    fault
                }
            };
            let refusal = refuse_failed(&engine, &fault);
            let suspect = awaited.filter(|_| matches!(fault, Fault::Prefill { .. }));
            let why_not = attempts.note_failure(&engine, suspect.as_ref().unwrap_or(&engine), &fault);
            if let Some(place) = waited.take_if(|_| !fault.is_of_connecting()) {
                place.placed();
            }
            match why_not {
                None => {}
                // Nothing was sent: it may be tried again, if not at once.
                Some(LastAttempt::NoRetriesLeft)
                    if failed.is_none() && attempts.may_wait() && proxy.places.may_wait() =>
                {
                    let why = refusal.clone();
                    self.wait_for_engine(&mut waited, &mut attempts, task, Some(refusal), why).await?;
                    continue;
                }
                Some(why) => {
                    let refusal = give_up(why, refusal);
                    return failed.ok_or(refusal);
                }
            }
            // If no other one can take it, the reason for that says more than that this one does not have the model.
            if fault != Fault::NoModel {
                last = Some(refusal);
            }
            facts.model.retries[fault.number()].fetch_add(1, Relaxed);
        }
    }
}

impl<'a> Job<'a> {
    /// Makes another engine pull the prompt's blocks into its cache (a warm-up), in the background.
    fn warm_up(&self, warm_up: Box<WarmUp>) {
        let Self { proxy, facts, model, body, ref outgoing, .. } = *self;
        let renamed = rename(&warm_up.engine, facts, model, outgoing.headers, body);
        warm_up::send(proxy, warm_up, outgoing.uri.path(), renamed.as_ref().unwrap_or(body));
    }

    /// Waits until an engine is up. `last`: refusal because of the last tried engine's fault; `why`: refusal because no
    /// engine is available.
    async fn wait_for_engine(
        &self,
        waited: &mut Option<EngineWait<'a>>,
        attempts: &mut Attempts,
        task: Task,
        last: Option<Refusal>,
        why: Refusal,
    ) -> Result<(), Refusal> {
        let proxy: &'a Forwarder = self.proxy;
        let failed = last.is_some();
        let refused = last.unwrap_or(why);
        // What an answer goes on from is at one engine, and gone with it.
        let result = match self.facts.hints.only_engine {
            None => {
                let tried = attempts.tried();
                Box::pin(proxy.places.wait_for_engine(waited, self.facts, task, tried, true, refused)).await
            }
            Some(_) => Err(refused),
        };
        if result.is_err() && failed {
            self.facts.model.given_up[LastAttempt::NoOtherEngine as usize].fetch_add(1, Relaxed);
        }
        attempts.start_over();
        result
    }
}

/// Returns the engines that were tried for the request, including the last one.
fn asked_so_far<'a>(engine: &'a Arc<Engine>, tried: &'a [Arc<Engine>]) -> Vec<&'a Arc<Engine>> {
    tried.iter().chain([engine]).collect()
}

/// Reads the complete answer with which an engine refuses a request.
async fn read_refusal(shard: usize, engine: &Engine, connection: Connection, answer: Head) -> Result<Verdict, Fault> {
    let Head { status, headers, keep, framing } = answer;
    let (connection, body) = whole(connection, framing).await.map_err(Fault::Broken)?;
    if keep && connection.is_clean() {
        engine.pool.put(shard, connection);
    }
    Ok(Verdict { status, headers, body })
}

/// Makes the body for an engine whose own name of the model differs from the client's; None if the body need not
/// change.
fn rename(engine: &Engine, facts: &RequestFacts, at: ModelAt, headers: &HeaderMap, body: &Bytes) -> Option<Bytes> {
    if engine.config.aliases.is_empty() {
        return None;
    }
    let models = engine.models.load();
    let name = models.own_name(facts.body.model.as_deref()?)?;
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    at.renamed(kind, body, name).map(Bytes::from)
}

/// True if the fleet has an engine that has not been tried yet.
fn has_other(fleet: &Fleet, engine: &Arc<Engine>, tried: &[Arc<Engine>]) -> bool {
    let is_asked = |other: &Arc<Engine>| Arc::ptr_eq(engine, other) || tried.iter().any(|it| Arc::ptr_eq(it, other));
    fleet.engines().iter().any(|other| !is_asked(other))
}

/// True if an answer with the status `status` results from the engine, not from the request, so that another engine may
/// serve the request.
fn is_worth_another(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
}

/// Returns the pause without requests that an engine asks for by the status and `Retry-After` of its answer; None if it
/// asks for none.
pub(crate) fn pause_wanted(status: StatusCode, retry_after: Option<&HeaderValue>) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    wait_until(retry_after?.to_str().ok()?, SystemTime::now())
}

/// Parses the pause in a value of `Retry-After`, which is a number of seconds or a date (RFC 9110, 10.2.3); None for
/// other values.
fn wait_until(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        value.parse().map_or(MAX_PAUSE, Duration::from_secs)
    } else {
        // One that is over already asks for nothing.
        httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?
    };
    Some(wait.min(MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_an_engine_asks_to_be_left_alone() {
        // 1994-11-06 08:49:37
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, wait) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("007", Some(7)),
            ("3600", Some(60)),
            ("99999999999999999999999999", Some(60)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10)),
            ("Sun Nov  6 08:49:47 1994", Some(10)),
            (" Sun, 06 Nov 1994 08:49:47 GMT ", Some(10)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("Thu, 01 Jan 1970 00:00:00 GMT", None),
            ("-7", None),
            ("+7", None),
            ("7.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(wait_until(value, now), wait.map(Duration::from_secs), "{value}");
        }
    }
}
