//! Tests of every policy that chooses at once: those of this crate and the plain ones; and fleets and prompts for all
//! tests.

use std::collections::BTreeSet;

use kvatlas_routing::parts::draw::Draw;
use kvatlas_routing::{BoxedPolicy, Candidates, Choice, Error, Options, Placement, Policy, PolicyTable, Request};

use crate::POLICIES;

/// A fleet of `count` idle workers, numbered from 0.
pub(crate) fn fleet(count: usize) -> Candidates {
    Candidates::idle(count)
}

/// Request with a prompt of full blocks of `size` tokens with the given content hashes.
pub(crate) fn blocks(size: u32, hashes: &[u64]) -> Request<'_> {
    Request { tokens: size * hashes.len() as u32, block_size: size, content_hashes: hashes, ..Request::default() }
}

/// Copy of a request with the given number.
pub(crate) fn numbered(number: u64, request: Request<'_>) -> Request<'_> {
    Request { number, ..request }
}

/// Informs a policy that a prompt was sent to the candidate `row`, regardless of the policy's own choice.
pub(crate) fn sent_to(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, row: usize) {
    policy.sent(request, candidates, row, 0.0);
}

/// Lets a policy choose a candidate for a request, and sends the request there. Returns the chosen row.
pub(crate) fn send(policy: &mut dyn Policy, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
    let Choice::Row(row) = policy.choose(request, candidates, now) else { panic!("it waits") };
    policy.sent(request, candidates, row, now);
    row
}

/// Options that enable optional behaviour of policies, by the policy's name.
const VARIANTS: &[(&str, &str)] = &[
    ("least-loaded", r#"{"by": "requests"}"#),
    ("smg-cache-aware", r#"{"kv_events": true}"#),
    ("smg-cache-aware", r#"{"max_tree_size": 500, "balance_abs_threshold": 2, "overload_token_usage_threshold": 0.9}"#),
    ("smg-spill", r#"{"kv_events": true, "overlap_decay": 1, "selection_temperature": 1}"#),
    (
        "dynamo-kv",
        r#"{"router_temperature": 0.5, "router_kv_overlap_score_credit_decay": 1, "router_predicted_ttl_secs": 2}"#,
    ),
    ("dynamo-kv", r#"{"router_kv_events": false, "router_ttl_secs": 3, "router_track_active_blocks": false}"#),
    ("dynamo-kv", r#"{"load_aware": true, "router_active_request_expiry_secs": 1}"#),
    ("vllm-router-kv-aware", r#"{"router_temperature": 1, "kv_aware_session_affinity_ttl_secs": 3}"#),
    ("llm-d-scorers", r#"{"precise": true, "no_hit_lru_weight": 2, "match_length_weight": 0.5, "lru_size": 2}"#),
    ("llm-d-scorers", r#"{"lru_capacity_per_server": 3}"#),
    ("preble", r#"{"profile": "learnt", "max_blocks": 10, "sliding_window_secs": 2}"#),
    (
        "ray-prefix-affinity",
        r#"{"imbalanced_threshold": 2, "do_eviction": true, "eviction_threshold_chars": 500, "eviction_target_chars": 100}"#,
    ),
    ("aibrix-prefix-cache", r#"{"prefix_cache_block_number": 20, "eviction_duration_mins": 0.05}"#),
];

/// The names of all policies except kvatlas' own.
fn names() -> Vec<&'static str> {
    let names: Vec<&str> = PolicyTable::own().with(POLICIES).names().collect();
    assert_eq!(names[0], "kvatlas");
    names[1..].to_vec()
}

fn make(name: &str, options: &str, seed: u64) -> Result<BoxedPolicy, Error> {
    PolicyTable::own().with(POLICIES).make(name, Options::from_json(options).unwrap(), seed)
}

fn all(seed: u64) -> Vec<BoxedPolicy> {
    let plain = names().into_iter().map(|name| (name, ""));
    let variants = plain.chain(VARIANTS.iter().copied());
    variants.map(|(name, options)| make(name, options, seed).unwrap()).collect()
}

/// A random number, often an extreme or invalid one.
fn odd(draw: &mut Draw, scale: f64) -> f64 {
    match draw.below(8) {
        0 => f64::NAN,
        1 => 0.0,
        2 => f64::INFINITY,
        3 => -1.0,
        _ => draw.unit() * scale,
    }
}

fn any_fleet(draw: &mut Draw, requests: &[u32]) -> Candidates {
    // Only some rows are allowed.
    let rows: Vec<usize> = (0..requests.len()).filter(|_| draw.below(4) > 0).collect();
    let rows = if rows.is_empty() { vec![draw.below(requests.len())] } else { rows };
    let mut candidates = Candidates { worker: rows.iter().map(|&row| row as u32).collect(), ..fleet(rows.len()) };
    for (row, &worker) in rows.iter().enumerate() {
        candidates.device_blocks[row] = draw.below(9) as u32;
        candidates.host_blocks[row] = candidates.device_blocks[row] + draw.below(3) as u32;
        candidates.any_blocks[row] = candidates.host_blocks[row] + draw.below(3) as u32;
        candidates.predicted_blocks[row] = candidates.device_blocks[row] + draw.below(3) as u32;
        candidates.trusted[row] = draw.below(2) == 0;
        candidates.requests[row] = requests[worker];
        candidates.queued_prompt_tokens[row] = odd(draw, 1e4);
        candidates.queued_tokens[row] = odd(draw, 1e4);
        candidates.reported_waiting[row] = odd(draw, 20.0);
        candidates.reported_running[row] = odd(draw, 20.0);
        candidates.reported_kv_usage[row] = odd(draw, 1.0);
        candidates.reported_age[row] = odd(draw, 10.0);
        candidates.prefill_rate[row] = odd(draw, 1e4);
        candidates.step_time[row] = odd(draw, 0.1);
        candidates.age[row] = odd(draw, 100.0);
        candidates.held_blocks[row] = odd(draw, 100.0);
        candidates.capacity_blocks[row] = odd(draw, 100.0);
        candidates.weight[row] = odd(draw, 3.0);
    }
    candidates
}

#[test]
fn any_stream_of_odd_requests_gets_valid_rows_and_leaves_nothing() {
    for seed in 0..30 {
        for mut policy in all(seed) {
            let mut draw = Draw::new(seed);
            let mut under_way: Vec<Placement> = Vec::new();
            let mut counts = vec![0u32; 1 + draw.below(6)];
            for number in 0..150u64 {
                let now = number as f64 / 10.0;
                let candidates = any_fleet(&mut draw, &counts);
                let hashes: Vec<u64> = (0..draw.below(8)).map(|_| draw.below(3) as u64).collect();
                let text = "some words again and again ".repeat(draw.below(20));
                let request = Request {
                    // Shorter than its blocks, longer, or empty.
                    tokens: draw.below(200) as u32,
                    block_size: [0, 1, 16, 512][draw.below(4)],
                    content_hashes: &hashes,
                    text: (draw.below(2) == 0).then_some(&*text),
                    session: (draw.below(2) == 0).then(|| draw.below(5) as u64),
                    max_tokens: (draw.below(2) == 0).then(|| draw.below(100) as u32),
                    answers: 1,
                    number,
                    ..Request::default()
                };
                let sound = hashes.len() as u64 * u64::from(request.block_size) <= u64::from(request.tokens);
                let request = if sound { request } else { Request { content_hashes: &[], ..request } };
                if let Some(terms) = policy.explain(&request, &candidates, now) {
                    assert_eq!(terms.values.len(), terms.names.len() * candidates.len(), "{}", policy.name());
                }
                let Choice::Row(row) = policy.choose(&request, &candidates, now) else { panic!("{}", policy.name()) };
                assert!(row < candidates.len(), "{}: row {row} of {}", policy.name(), candidates.len());
                // Some choices are not sent.
                if draw.below(10) > 0 {
                    policy.sent(&request, &candidates, row, now);
                    let worker = candidates.worker[row];
                    counts[worker as usize] += 1;
                    under_way.push(Placement { number, worker, uncached: request.tokens, freed: 0 });
                }
                if draw.below(3) > 0 && !under_way.is_empty() {
                    let placed = under_way.swap_remove(draw.below(under_way.len()));
                    if draw.below(2) == 0 {
                        policy.first_token(&placed, now);
                    }
                    policy.ended(&placed, now);
                    counts[placed.worker as usize] -= 1;
                }
                if draw.below(40) == 0 {
                    let gone = draw.below(counts.len()) as u32;
                    policy.left(gone);
                }
            }
            assert!(policy.remembered().0 <= under_way.len(), "{}", policy.name());
            for placed in under_way {
                policy.ended(&placed, 20.0);
            }
            assert_eq!(policy.remembered().0, 0, "{} remembers requests that have ended", policy.name());
            (0..counts.len() as u32).for_each(|worker| policy.left(worker));
            assert_eq!(policy.remembered(), (0, 0), "{} remembers workers that have left", policy.name());
        }
    }
}

#[test]
fn a_policy_decides_alike_from_the_same_seed() {
    let mut runs = all(7).into_iter().zip(all(7));
    let hashes: Vec<Vec<u64>> = (0..50).map(|number| vec![number % 5, number % 3, number]).collect();
    assert!(runs.all(|(mut one, mut two)| {
        hashes.iter().enumerate().all(|(number, hashes)| {
            let request = Request { number: number as u64, session: Some(number as u64 % 4), ..blocks(16, hashes) };
            send(&mut *one, &request, &fleet(5), 0.0) == send(&mut *two, &request, &fleet(5), 0.0)
        })
    }));
}

#[test]
fn explaining_changes_nothing() {
    for (mut asked, mut quiet) in all(3).into_iter().zip(all(3)) {
        for number in 0..60 {
            let hashes = [number % 3, number % 2, number];
            let request = Request { number, ..blocks(16, &hashes) };
            let _ = asked.explain(&request, &fleet(4), 0.0);
            let rows = [&mut asked, &mut quiet].map(|policy| send(&mut **policy, &request, &fleet(4), 0.0));
            assert_eq!(rows[0], rows[1], "{}", asked.name());
        }
    }
}

#[test]
fn names_are_those_that_policies_give_themselves() {
    let different: BTreeSet<&str> = names().into_iter().collect();
    assert_eq!(different.len(), names().len());
    for name in names() {
        assert_eq!(make(name, "", 0).unwrap().name(), name);
        assert_eq!(make(name, r#"{"no_such": 1}"#, 0).err().unwrap().code, "bad_option");
    }
    assert_eq!(make("exact", "", 0).err().unwrap().code, "unknown_policy");
}

/// Names of a policy's options, taken from its error about an unknown option.
fn options(name: &str) -> Vec<String> {
    let error = make(name, r#"{"no_such": 1}"#, 0).err().unwrap();
    let list = error.message.split(" it has ").nth(1).unwrap_or_default().to_owned();
    list.split(", ").filter(|option| *option != "none").map(str::to_owned).collect()
}

/// Names of the options in the policy's table on the documentation page, and in the table of a policy to which the page
/// refers.
fn listed<'p>(page: &'p str, name: &str) -> BTreeSet<&'p str> {
    let section = page.split("\n## ").find(|section| section.starts_with(&format!("`{name}`")));
    let section = section.unwrap_or_else(|| panic!("the page has no section on {name}"));
    let mut options: BTreeSet<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(option, _)| option)
        .collect();
    if let Some((_, rest)) = section.split_once("other options are those of [`") {
        options.extend(listed(page, rest.split('`').next().unwrap_or_default()));
    }
    options
}

#[test]
fn the_page_names_every_policy_and_option() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/policies.md");
    let page = std::fs::read_to_string(page).unwrap();
    for name in names() {
        let has = options(name);
        assert_eq!(
            listed(&page, name),
            has.iter().map(String::as_str).collect(),
            "options of {name} on the page, and as it has them"
        );
    }
}

#[test]
fn a_policy_decides_by_the_text_of_prompts_only_if_it_says_so() {
    for at in 0..all(0).len() {
        let mut differs = false;
        let (mut name, mut needs_text) = (String::new(), false);
        for seed in 0..4 {
            let [mut with, mut without] = [all(seed).swap_remove(at), all(seed).swap_remove(at)];
            (name, needs_text) = (with.name().to_owned(), with.needs_text());
            let mut draw = Draw::new(seed);
            for number in 0..200u64 {
                let now = number as f64 / 10.0;
                let workers = 2 + draw.below(4);
                let candidates =
                    Candidates { requests: (0..workers).map(|_| draw.below(4) as u32).collect(), ..fleet(workers) };
                let text = ["ships ", "sails ", "keels "][draw.below(3)].repeat(60 + draw.below(60));
                let request = Request { tokens: 200, block_size: 16, answers: 1, number, ..Request::default() };
                let read = Request { text: Some(&text), ..request };
                let choices = [with.choose(&read, &candidates, now), without.choose(&request, &candidates, now)];
                differs |= choices[0] != choices[1];
                let Choice::Row(row) = choices[0] else { panic!("{name}") };
                with.sent(&read, &candidates, row, now);
                without.sent(&request, &candidates, row, now);
            }
        }
        assert!(needs_text || !differs, "{name} decides by the text and does not say that it needs it");
    }
}
