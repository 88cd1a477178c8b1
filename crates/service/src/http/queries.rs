//! `/query`, `/query_by_hash` and `/query_batch`: read, look up, write. Nothing here waits for anything.

use std::cmp::Reverse;

use hyper::{Response, StatusCode};

use super::answer::{Answer, json};
use super::app::App;
use super::found::{self, Filter, Row};
use super::found_json::{self, Ranks};
use super::query::{self, Asked, Kind, Scope, Scratch};
use super::refusal::Refusal;
use super::writer::Writer;
use crate::config::UntrustedPolicy;
use crate::state::{Keyspace, Untrusted};

type Result<T> = std::result::Result<T, Refusal>;

/// Answers one query.
pub(crate) fn single(app: &App, body: &[u8], kind: Kind) -> Result<Response<Answer>> {
    Scratch::with(|scratch| {
        let asked = query::single(body, kind, scratch)?;
        let scope = &asked.scope;
        let keyspace = keyspace(app, scope)?;
        let block_size = u64::from(keyspace.block_size);
        let mut matched = false;
        let answer = keyspace.steady(|untrusted| {
            let filter = filter(app, scope, untrusted);
            let mut rows = Vec::new();
            asked.each(keyspace.block_size, scratch, |content| {
                rows = found::rows(&keyspace.index().find(content), &filter);
            });
            matched = !rows.is_empty();

            let workers = found::by_worker(&mut rows, scope.top_k);
            let mut out = Writer::with_capacity(128 + 128 * workers.len());
            found_json::answer(&mut out, &rows, &workers, block_size, scope.age.then_some(&*keyspace));
            if scope.levels {
                found_json::levels(&mut out, &rows, &workers, block_size);
            }
            if workers.iter().any(|worker| is_upper_bound(untrusted, &rows[worker.ranks.clone()])) {
                out.raw(",\"upper_bound\":true");
            }
            found_json::doubts(&mut out, untrusted, |worker| filter.allows(worker));
            out.raw("}");
            out.done()
        });
        app.counts.queried(1, u64::from(matched));
        Ok(json(StatusCode::OK, answer))
    })
}

/// Answers a batch.
pub(crate) fn batch(app: &App, body: &[u8]) -> Result<Response<Answer>> {
    Scratch::with(|scratch| {
        let asked = query::batch(body, scratch)?;
        let keyspace = keyspace(app, &asked.scope)?;
        let mut matched = 0;
        let answer = keyspace.steady(|untrusted| {
            matched = 0;
            answers(app, &asked, &keyspace, untrusted, scratch, &mut matched)
        });
        app.counts.queried(asked.len() as u64, matched);
        Ok(json(StatusCode::OK, answer))
    })
}

/// The answer to a batch, and how many of its queries match.
fn answers(
    app: &App,
    asked: &Asked<'_>,
    keyspace: &Keyspace,
    untrusted: &Untrusted,
    scratch: &mut Scratch,
    matched: &mut u64,
) -> Vec<u8> {
    let scope = &asked.scope;
    let filter = filter(app, scope, untrusted);
    let block_size = u64::from(keyspace.block_size);
    let mut ranks = Ranks::default();
    let mut upper_bound = false;
    let mut answers = Writer::with_capacity(64 + 512 * asked.len());
    let mut first = true;
    asked.each(keyspace.block_size, scratch, |content| {
        let mut rows = found::rows(&keyspace.index().find(content), &filter);
        *matched += u64::from(!rows.is_empty());
        if let Some(top_k) = scope.top_k {
            rows = best(rows, top_k);
        } else if !rows.is_sorted_by_key(order) {
            rows.sort_by_key(order);
        }
        upper_bound |= is_upper_bound(untrusted, &rows);
        if !std::mem::take(&mut first) {
            answers.raw(",");
        }
        ranks.answer(&mut answers, &rows, block_size);
    });

    let answers = answers.done();
    let mut out = Writer::with_capacity(answers.len() + 128 + 48 * ranks.len());
    out.raw("{\"block_size\":");
    out.number(block_size);
    out.raw(",\"workers\":[");
    ranks.names(&mut out);
    out.raw("],\"answers\":[");
    out.bytes(&answers);
    out.raw("]");
    if upper_bound {
        out.raw(",\"upper_bound\":true");
    }
    found_json::doubts(&mut out, untrusted, |worker| filter.allows(worker));
    out.raw("}");
    out.done()
}

/// All ranks of the `top_k` best workers, deepest first.
fn best(mut rows: Vec<Row>, top_k: usize) -> Vec<Row> {
    let workers = found::by_worker(&mut rows, Some(top_k));
    let mut rows: Vec<_> = workers.into_iter().flat_map(|worker| rows[worker.ranks].to_vec()).collect();
    rows.sort_by_key(order);
    rows
}

fn order(row: &Row) -> impl Ord + use<> {
    Reverse(row.depths)
}

fn keyspace(app: &App, scope: &Scope<'_>) -> Result<std::sync::Arc<Keyspace>> {
    let keyspace = app.fleet.keyspace(&scope.model, scope.routing_group());
    keyspace.ok_or_else(|| Refusal::unknown_keyspace(&scope.model, scope.routing_group()))
}

fn filter<'a>(app: &App, scope: &'a Scope<'_>, untrusted: &'a Untrusted) -> Filter<'a> {
    Filter {
        among: scope.among.as_ref().map(|names| names.iter().map(String::as_str).collect()),
        without: (app.config.untrusted == UntrustedPolicy::LeaveOut).then_some(untrusted),
    }
}

fn is_upper_bound(streams: &Untrusted, rows: &[Row]) -> bool {
    streams.has_upper_bounds() && rows.iter().any(|row| streams.is_upper_bound(&row.worker, row.rank))
}
