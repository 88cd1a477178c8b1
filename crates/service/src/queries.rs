//! Routes `/query`, `/query_by_hash` and `/query_batch`: parse a query, look its blocks up, and write the answer,
//! without waiting for anything.

use std::cmp::Reverse;
use std::sync::Arc;

use hyper::{Response, StatusCode};

use crate::answer::{Answer, Refusal, Writer, json};
use crate::app::App;
use crate::config::UntrustedPolicy;
use crate::found_json::{self, Ranks};
use crate::query::{self, Body, Kind, Queries, Scope, Scratch};
use kvatlas_follow::fleet::ModelPlace;
use kvatlas_follow::lookup::{self, Filter, Row};
use kvatlas_follow::state::{Keyspace, Reservations};

type Result<T> = std::result::Result<T, Refusal>;

/// Answers a query for one prompt.
pub(crate) fn single(app: &App, body: Body<'_>, kind: Kind) -> Result<Response<Answer>> {
    Scratch::with(|scratch| {
        let mut asked = query::single(body, kind, scratch)?;
        let ModelPlace { keyspace, adapter } = find(app, &mut asked)?;
        let scope = &asked.scope;
        let block_size = u64::from(keyspace.block_size);
        describe(&keyspace, &asked, scratch);
        let content = asked.content(0, keyspace.block_size, keyspace.identity(), scratch);
        let cap = asked.cap(0, keyspace.block_size);
        let wants_tokens = wants_tokens(&keyspace, &asked);
        let mut matched = false;
        let answer = keyspace.steady(|untrusted| {
            let filter = filter(app, scope, untrusted);
            let (index, hybrids) = (keyspace.index(), keyspace.hybrids());
            let found = index.find(content);
            // Read after the index, so that every hybrid worker among the results is known as one.
            let hybrids = hybrids.load();
            let mut rows = lookup::rows(&found, &hybrids, content, &filter, cap);
            matched = !rows.is_empty();
            let loadable = lookup::loadable(&index, &hybrids, content, &filter);
            rows.extend(found_json::others(&rows, &loadable, untrusted, cap));

            let workers = lookup::by_worker(&mut rows, scope.top_k);
            let mut out = Writer::with_capacity(128 + 128 * workers.len());
            found_json::answer(&mut out, &rows, &workers, &loadable, block_size, scope.age.then_some(untrusted));
            if scope.levels {
                found_json::levels(&mut out, &rows, &workers, block_size);
            }
            if workers.iter().any(|worker| is_upper_bound(untrusted, &rows[worker.ranks.clone()])) {
                out.raw(",\"upper_bound\":true");
            }
            found_json::adapter(&mut out, adapter.as_deref());
            found_json::doubts(&mut out, untrusted, |worker| filter.allows(worker));
            found_json::wants_tokens(&mut out, wants_tokens);
            out.raw("}");
            out.finish()
        });
        app.counts.add_query(1, u64::from(matched));
        learn(&keyspace, &asked, scratch);
        Ok(json(StatusCode::OK, answer))
    })
}

/// Answers a query for a batch of prompts.
pub(crate) fn batch(app: &App, body: &[u8]) -> Result<Response<Answer>> {
    Scratch::with(|scratch| {
        let mut asked = query::batch(body, scratch)?;
        let found = find(app, &mut asked)?;
        let keyspace = &found.keyspace;
        let wants_tokens = wants_tokens(keyspace, &asked);
        describe(keyspace, &asked, scratch);
        let mut matched = 0;
        let mut answer = keyspace.steady(|untrusted| {
            matched = 0;
            answers(app, &asked, &found, untrusted, scratch, &mut matched)
        });
        found_json::wants_tokens(&mut answer, wants_tokens);
        answer.raw("}");
        let answer = answer.finish();
        app.counts.add_query(asked.len() as u64, matched);
        learn(keyspace, &asked, scratch);
        Ok(json(StatusCode::OK, answer))
    })
}

/// Looks up all prompts of a batch, and writes the answer without its closing bracket. Adds the number of prompts with
/// matching workers to `matched`.
fn answers(
    app: &App,
    asked: &Queries<'_>,
    ModelPlace { keyspace, adapter }: &ModelPlace,
    untrusted: &Reservations,
    scratch: &mut Scratch,
    matched: &mut u64,
) -> Writer {
    let scope = &asked.scope;
    let filter = filter(app, scope, untrusted);
    let block_size = u64::from(keyspace.block_size);
    let mut ranks = Ranks::default();
    let mut upper_bound = false;
    let mut answers = Writer::with_capacity(64 + 512 * asked.len());
    let mut at = 0;
    asked.each(keyspace.block_size, keyspace.identity(), scratch, |content| {
        let (index, hybrids) = (keyspace.index(), keyspace.hybrids());
        let found = index.find(content);
        // Read after the index, so that every hybrid worker among the results is known as one.
        let hybrids = hybrids.load();
        let mut rows = lookup::rows(&found, &hybrids, content, &filter, asked.cap(at, keyspace.block_size));
        *matched += u64::from(!rows.is_empty());
        if let Some(top_k) = scope.top_k {
            rows = best(rows, top_k);
        } else if !rows.is_sorted_by_key(order) {
            rows.sort_by_key(order);
        }
        upper_bound |= is_upper_bound(untrusted, &rows);
        if at > 0 {
            answers.raw(",");
        }
        ranks.answer(&mut answers, &rows, block_size);
        at += 1;
    });

    let answers = answers.finish();
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
    found_json::adapter(&mut out, adapter.as_deref());
    found_json::doubts(&mut out, untrusted, |worker| filter.allows(worker));
    out
}

/// True if queries with tokens, instead of content hashes, would help to adopt blocks (to learn of blocks announced
/// before the service started). Also counts the queries without tokens.
fn wants_tokens(keyspace: &Keyspace, asked: &Queries<'_>) -> bool {
    (0..asked.hashed()).fold(false, |_, _| keyspace.note_hash_query())
}

/// Tells the pools that LMCache fills which of the prompts' chunks they have, by the prompts' tokens.
fn describe(keyspace: &Keyspace, asked: &Queries<'_>, scratch: &mut Scratch) {
    if !keyspace.has_listed_pools() {
        return;
    }
    for at in (0..asked.len()).filter(|at| asked.has_tokens(*at)) {
        let content = asked.content(at, keyspace.block_size, keyspace.identity(), scratch).to_vec();
        if let Some((tokens, adapter, salt)) = asked.tokens(at, scratch) {
            keyspace.describe_to_pools(tokens, &content, adapter, salt);
        }
    }
}

/// Queues the prompts of a query for a background thread, since their tokens may identify blocks that engines announced
/// before the service started. Called after the answer has been written.
fn learn(keyspace: &Arc<Keyspace>, asked: &Queries<'_>, scratch: &Scratch) {
    if keyspace.is_waiting() {
        for (tokens, lora, salt) in (0..asked.len()).filter_map(|at| asked.tokens(at, scratch)) {
            keyspace.note_query(tokens, lora, salt);
        }
    }
}

/// Selects the rows of all ranks of the `top_k` best workers, deepest first.
fn best(mut rows: Vec<Row<'_>>, top_k: usize) -> Vec<Row<'_>> {
    let workers = lookup::by_worker(&mut rows, Some(top_k));
    let mut rows: Vec<_> = workers.into_iter().flat_map(|worker| rows[worker.ranks].to_vec()).collect();
    rows.sort_by_key(order);
    rows
}

fn order(row: &Row<'_>) -> impl Ord + use<> {
    Reverse(row.depths)
}

/// Finds the keyspace (model and routing group) of a query. If the query names a LoRA adapter as its model, sets the
/// adapter for all its prompts.
fn find(app: &App, asked: &mut Queries<'_>) -> Result<ModelPlace> {
    let found = app.fleet.find(&asked.scope.model, asked.scope.routing_group())?;
    if let Some(adapter) = &found.adapter {
        asked.adapt(adapter)?;
    }
    if found.keyspace.identity().is_keyed() {
        asked.check_tokens()?;
    }
    Ok(found)
}

fn filter<'a>(app: &App, scope: &'a Scope<'_>, untrusted: &'a Reservations) -> Filter<'a> {
    Filter {
        among: scope.among.as_ref().map(|names| names.iter().map(String::as_str).collect()),
        without: (app.untrusted == UntrustedPolicy::LeaveOut).then_some(untrusted),
        strict: scope.strict.then_some(untrusted),
    }
}

fn is_upper_bound(streams: &Reservations, rows: &[Row<'_>]) -> bool {
    streams.has_upper_bounds() && rows.iter().any(|row| streams.is_upper_bound(row.worker, row.rank))
}
