//! Statistics of prompts that the router cannot convert to tokens, so that it chooses engines without knowledge of
//! their caches. A high share among recent prompts is reported as a fault of the fleet.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kvatlas_prompt::{Endpoint, PromptFailure};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Maximum number of recent prompts. Above it, the counts of recent prompts are halved, so that old prompts lose
/// weight.
const MOST: u64 = 2_000;
/// Time after which the counts of recent prompts are halved, so that old prompts lose weight.
const FORGETS_AFTER: Duration = Duration::from_secs(120);

/// Minimum number of recent prompts without tokens for which a fault is reported.
const LEAST: u64 = 3;
/// Minimum share of prompts without tokens, among the recent ones, for which a fault is reported.
const LEAST_SHARE: f64 = 0.02;

const KINDS: usize = Endpoint::ALL.len();

/// URL of the advice to operators about prompts without tokens.
const RUNBOOK: &str = "https://github.com/kvatlas/kvatlas/blob/main/docs/guides/sick-engines.md#unread-prompts";

/// Counts of prompts that could not be converted to tokens, and of all prompts. Requests only add to the counts; the
/// share among recent prompts is computed from the counts periodically.
#[derive(Debug, Default)]
pub(crate) struct UnreadPrompts {
    /// Number of prompts that the router tried to convert to tokens, by endpoint ([`Endpoint::ALL`]).
    pub(crate) all: [AtomicU64; KINDS],
    unread: [AtomicU64; KINDS],
    /// Latest reason for a prompt without tokens, with the engine's answer if an engine was asked; None if all prompts
    /// had tokens.
    last: Mutex<Option<(PromptFailure, Option<String>)>>,
    lately: Mutex<Lately>,
}

/// Counts of the recent prompts, with and without tokens.
#[derive(Debug, Default)]
struct Lately {
    /// Total counts at the last update: all prompts, and those without tokens.
    seen: [(u64, u64); KINDS],
    /// Counts of recent prompts: all prompts, and those without tokens.
    last: [(u64, u64); KINDS],
    /// Time at which the counts of recent prompts were last halved.
    halved: Option<Instant>,
    /// True if the log already reports the high share of prompts without tokens.
    is_said: bool,
}

impl UnreadPrompts {
    /// Counts a prompt that the router is about to convert to tokens.
    pub(crate) fn note(&self, endpoint: Endpoint) {
        self.all[endpoint as usize].fetch_add(1, Relaxed);
    }

    /// Counts a prompt that could not be converted to tokens. `said`: the engine's answer in place of tokens, if any.
    pub(crate) fn note_unread(&self, endpoint: Endpoint, why_not: PromptFailure, said: Option<&str>) {
        if matters(why_not) {
            self.unread[endpoint as usize].fetch_add(1, Relaxed);
            *self.last.lock() = Some((why_not, said.map(str::to_owned)));
        }
    }

    /// Returns the share of recent prompts that could not be converted to tokens, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        let (all, unread) = self.lately.lock().sum();
        if all == 0 { 0.0 } else { unread as f64 / all as f64 }
    }

    /// Updates the share of prompts without tokens, and logs when the share becomes too high or normal again.
    pub(crate) fn look(&self, now: Instant) {
        let is_there = {
            let mut lately = self.lately.lock();
            lately.take_in(self.counts(), now);
            let is_there = lately.is_ill();
            if is_there == lately.is_said {
                return;
            }
            lately.is_said = is_there;
            is_there
        };
        match self.condition().filter(|_| is_there) {
            Some(condition) => tracing::warn!(
                share = format!("{:.2}", self.share()),
                "prompts cannot be read, and are placed without knowing what is cached of them: {}; {}",
                condition["reason"].as_str().unwrap_or_default(),
                condition["advice"].as_str().unwrap_or_default()
            ),
            None => tracing::info!("prompts can be read again"),
        }
    }

    /// Returns the fault of too many prompts without tokens as JSON for answers; None if nearly all prompts have
    /// tokens.
    pub(crate) fn condition(&self) -> Option<Value> {
        let lately = self.lately.lock();
        if !lately.is_ill() {
            return None;
        }
        let (all, unread) = lately.sum();
        let kinds = Endpoint::ALL.iter().zip(lately.last).filter(|(_, (_, unread))| *unread > 0);
        let kinds: Vec<_> = kinds.map(|(endpoint, _)| endpoint.word()).collect();
        drop(lately);
        let (why_not, said) = self.last.lock().clone()?;
        let reason = said.map_or_else(|| why_not.to_string(), |said| format!("{why_not} ({said})"));
        Some(json!({
            "share": unread as f64 / all.max(1) as f64,
            "unread": unread,
            "prompts": all,
            "endpoints": kinds,
            "reason": reason,
            "advice": advice(why_not),
            "runbook": RUNBOOK,
        }))
    }

    fn counts(&self) -> [(u64, u64); KINDS] {
        // What is unread was counted among all before.
        let unread = self.unread.each_ref().map(|count| count.load(Relaxed));
        let all = self.all.each_ref().map(|count| count.load(Relaxed));
        std::array::from_fn(|at| (all[at], unread[at]))
    }
}

impl Lately {
    fn take_in(&mut self, counts: [(u64, u64); KINDS], now: Instant) {
        for ((last, seen), (all, unread)) in self.last.iter_mut().zip(&mut self.seen).zip(counts) {
            last.0 += all - seen.0;
            last.1 += unread - seen.1;
            *seen = (all, unread);
        }
        let halved = *self.halved.get_or_insert(now);
        let is_old = now.duration_since(halved) >= FORGETS_AFTER;
        if is_old || self.sum().0 > MOST {
            self.halved = Some(now);
            self.last.iter_mut().for_each(|(all, unread)| (*all, *unread) = (*all / 2, *unread / 2));
        }
    }

    fn sum(&self) -> (u64, u64) {
        self.last.iter().fold((0, 0), |sum, last| (sum.0 + last.0, sum.1 + last.1))
    }

    fn is_ill(&self) -> bool {
        let (all, unread) = self.sum();
        unread >= LEAST && unread as f64 >= LEAST_SHARE * all as f64
    }
}

/// True if the operator can remove the reason why a prompt has no tokens.
fn matters(why_not: PromptFailure) -> bool {
    use PromptFailure::{NoRoom, NoTemplate, NoTokenizer, NotAnswered, OtherItem, TemplateRefuses, TookTooLong};
    matches!(why_not, NoTokenizer | NoTemplate | TemplateRefuses | OtherItem | NotAnswered | TookTooLong | NoRoom)
}

fn advice(why_not: PromptFailure) -> &'static str {
    match why_not {
        PromptFailure::NotAnswered => {
            "let the engines answer POST /tokenize, or give the router a tokenizer of its own (--tokenizer PATH); \
             `kvatlas router --check` asks each engine"
        }
        PromptFailure::NoTokenizer => "give the router this model's tokenizer (--tokenizer PATH, or `engine`)",
        PromptFailure::NoTemplate => "put the model's chat_template.jinja beside its tokenizer.json",
        PromptFailure::TemplateRefuses => "give the router the chat template that the engine was started with",
        PromptFailure::TookTooLong => {
            "give the router more cores, or run more routers: it reads as many long prompts at once as it has cores"
        }
        PromptFailure::NoRoom => "give the router more memory for bodies (http.body_memory)",
        _ => "use --tokenizer engine with vLLM started with --enable-scale-out: it renders all that it takes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_last_prompts() {
        let (prompts, now) = (UnreadPrompts::default(), Instant::now());
        for number in 0..90 {
            prompts.note(Endpoint::Chat);
            if number % 9 == 0 {
                prompts.note(Endpoint::Messages);
                prompts.note_unread(Endpoint::Messages, PromptFailure::NotAnswered, Some("e0 answered 403"));
            }
            prompts.note_unread(Endpoint::Chat, PromptFailure::Image, None);
        }
        assert_eq!(prompts.condition(), None, "nobody has looked");
        prompts.look(now);
        let condition = prompts.condition().expect("one");
        assert_eq!((&condition["share"], &condition["endpoints"]), (&json!(0.1), &json!(["messages"])));
        assert!(condition["reason"].as_str().is_some_and(|reason| reason.contains("e0 answered 403")));
        (0..1_000).for_each(|_| prompts.note(Endpoint::Messages));
        prompts.look(now);
        assert!(prompts.condition().is_none() && prompts.share() > 0.0);
        // What was long ago does not count for ever.
        (1..9).for_each(|number| prompts.look(now + number * FORGETS_AFTER));
        assert!(prompts.share() < 0.01);
    }

    #[test]
    fn a_few_are_no_condition() {
        let prompts = UnreadPrompts::default();
        for _ in 0..2 {
            prompts.note(Endpoint::Chat);
            prompts.note_unread(Endpoint::Chat, PromptFailure::NoTemplate, None);
        }
        prompts.look(Instant::now());
        assert_eq!(prompts.condition(), None);
    }
}
