//! Tests of answers over HTTP against the index itself: content is stored directly into the index, and the answer must
//! be its match.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Client, Publisher, eventually};
use kvatlas_index::{BlockHash, BlockIndex, Event, Tier, View, hash};
use kvatlas_service::{Config, Service};
use kvatlas_testing::Random;
use serde_json::{Value, json};

const BLOCK_SIZE: usize = 4;

fn start() -> Service {
    let config = json!({ "http": { "bind": "127.0.0.1:0" }, "log": { "level": "off" } });
    Service::start(Config::from_json(&config.to_string()).expect("a configuration")).expect("a free port")
}

/// Registers an unreachable worker, to get a keyspace for content.
fn keyspace(service: &Service) -> std::sync::Arc<kvatlas_follow::state::Keyspace> {
    let engine = json!({
        "instance_id": "nobody", "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": BLOCK_SIZE,
    });
    service.follower().register(&engine.to_string(), None).expect("registered");
    service.follower().fleet().keyspace("m", "default").expect("made by the registration")
}

fn get(service: &Service, path: &str) -> (u16, Value) {
    let answer = Client::to(service.address()).get(path);
    (answer.status(), answer.json())
}

fn post(service: &Service, path: &str, body: &Value) -> Value {
    let answer = Client::to(service.address()).post(path, body);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

fn fill(index: &BlockIndex, random: &mut Random) -> Vec<Vec<u32>> {
    let prompts: Vec<Vec<u32>> = (0..12).map(|_| (0..48).map(|_| random.below(2) as u32).collect()).collect();
    for worker in ["1", "2", "pod-b", "4"] {
        for rank in 0..3 {
            for prompt in &prompts {
                let content = hash::content_hashes(prompt, BLOCK_SIZE, None, None);
                let names: Vec<_> = hash::prefix_hashes(&content).into_iter().map(BlockHash).collect();
                let mut done = 0;
                while done < names.len() && random.below(4) > 0 {
                    let end = names.len().min(done + 1 + random.below(5) as usize);
                    let tier = Tier::ALL[(random.below(7) as usize).saturating_sub(3)];
                    let parent = done.checked_sub(1).map(|last| names[last]);
                    index
                        .store(worker, rank, tier, parent, &names[done..end], &content[done..end])
                        .expect("equal lengths");
                    done = end;
                }
            }
        }
    }
    prompts
}

/// Depths above 0 in tokens, by worker and rank.
fn depths(index: &BlockIndex, prompt: &[u32], view: View) -> BTreeMap<(String, u32), u64> {
    let content = hash::content_hashes(prompt, BLOCK_SIZE, None, None);
    let found = index.find(&content);
    let ranks = found.by_rank(view);
    ranks.into_iter().map(|(worker, rank, depth)| ((worker.to_string(), rank), u64::from(depth) * 4)).collect()
}

fn best(depths: &BTreeMap<(String, u32), u64>, worker: &str) -> u64 {
    depths.iter().filter(|((name, _), _)| name == worker).map(|(_, depth)| *depth).max().unwrap_or(0)
}

#[test]
fn every_field_is_what_the_index_says() {
    let service = start();
    let keyspace = keyspace(&service);
    let prompts = fill(&keyspace.index(), &mut Random(1));
    let (mut told, mut tiers_differ) = (0, 0);
    for prompt in &prompts {
        let [gpu, cpu, disk, any] = View::ALL.map(|view| depths(&keyspace.index(), prompt, view));
        let answer = post(&service, "/query", &json!({ "model_name": "m", "token_ids": prompt, "levels": true }));
        let content = hash::content_hashes(prompt, BLOCK_SIZE, None, None);
        let tokens = prompt.len();
        let asked = json!({ "model_name": "m", "block_hashes": content, "prompt_tokens": tokens, "levels": true });
        let by_hash = post(&service, "/query_by_hash", &asked);
        assert_eq!(answer, by_hash);

        let mut ranks = BTreeMap::new();
        for (worker, scores) in answer["scores"].as_object().expect("an object") {
            for (rank, tokens) in scores.as_object().expect("an object") {
                ranks.insert((worker.clone(), rank.parse().expect("a rank")), tokens.as_u64().expect("tokens"));
            }
            assert_eq!(*scores, answer["instances"][worker]["dp"]);
        }
        assert_eq!(ranks, gpu);
        let instances = answer["instances"].as_object().expect("an object");
        for (worker, instance) in instances {
            for (field, view) in [("gpu", &gpu), ("cpu", &cpu), ("disk", &disk), ("longest_matched", &any)] {
                assert_eq!(instance[field], best(view, worker), "{field} of {worker}");
            }
            let usable = best(&gpu, worker).min((tokens as u64 - 1) / 4 * 4);
            assert_eq!(instance["usable"], usable, "of {worker}");
            told += 1;
            tiers_differ +=
                u32::from(instance["cpu"] != instance["disk"] || instance["disk"] != instance["longest_matched"]);
        }
        assert!(any.keys().all(|(worker, _)| instances.contains_key(worker)));
        for level in answer["levels"].as_array().expect("a list") {
            for worker in level["workers"].as_array().expect("a list") {
                let name = worker.as_str().map_or_else(|| worker.to_string(), str::to_owned);
                assert_eq!(level["tokens"], best(&gpu, &name));
            }
        }
    }
    assert!(told > 20 && tiers_differ > 5, "{told} {tiers_differ}: the content tests nothing");
}

#[test]
fn a_batch_answers_as_its_queries_would() {
    let service = start();
    let keyspace = keyspace(&service);
    let prompts = fill(&keyspace.index(), &mut Random(2));
    let queries: Vec<_> = prompts.iter().map(|prompt| json!({ "token_ids": prompt })).collect();
    let batch = post(&service, "/query_batch", &json!({ "model_name": "m", "queries": queries }));
    assert_eq!(batch["block_size"], BLOCK_SIZE);
    let workers = batch["workers"].as_array().expect("a list");
    let answers = batch["answers"].as_array().expect("a list");
    assert_eq!(answers.len(), prompts.len());
    for (prompt, answer) in prompts.iter().zip(answers) {
        let numbers = |key: &str| -> Option<Vec<u64>> { answer[key].as_array()?.iter().map(Value::as_u64).collect() };
        let (ranks, tokens) = (numbers("ranks").expect("numbers"), numbers("tokens").expect("numbers"));
        let any = numbers("any_tier").unwrap_or_else(|| tokens.clone());
        assert!(tokens.is_sorted_by(|a, b| a >= b), "deepest first");
        let named = |depths: Vec<u64>| -> BTreeMap<(String, u32), u64> {
            let name = |rank: &u64| {
                let worker = &workers[*rank as usize];
                let id = &worker["instance_id"];
                let name = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
                (name, worker["dp_rank"].as_u64().expect("a rank") as u32)
            };
            ranks.iter().map(name).zip(depths).filter(|(_, depth)| *depth > 0).collect()
        };
        assert_eq!(named(tokens), depths(&keyspace.index(), prompt, View::Device));
        assert_eq!(named(any), depths(&keyspace.index(), prompt, View::AnyTier));
    }
}

#[test]
fn salts_and_adapters_are_part_of_the_hash() {
    let service = start();
    let keyspace = keyspace(&service);
    let tokens: Vec<u32> = (0..8).collect();
    for (worker, lora, salt) in
        [("1", None, None), ("2", Some("a"), None), ("3", None, Some("s")), ("4", Some("a"), Some("s"))]
    {
        let content = hash::content_hashes(&tokens, BLOCK_SIZE, lora, salt);
        let names: Vec<_> = hash::prefix_hashes(&content).into_iter().map(BlockHash).collect();
        keyspace.index().store(worker, 0, Tier::Gpu, None, &names, &content).expect("equal lengths");
        let query = json!({ "model_name": "m", "token_ids": tokens, "lora_name": lora, "cache_salt": salt });
        assert_eq!(post(&service, "/query", &query)["scores"], json!({ worker: { "0": 8 } }));
        let batch =
            json!({ "model_name": "m", "queries": [{ "token_ids": tokens, "lora_name": lora, "cache_salt": salt }] });
        assert_eq!(
            post(&service, "/query_batch", &batch)["workers"],
            json!([{ "instance_id": worker.parse::<u64>().ok(), "dp_rank": 0 }])
        );
    }
}

#[test]
fn a_dump_that_waits_its_turn_is_not_cut_off() {
    let config = json!({
        "http": { "bind": "127.0.0.1:0", "idle_timeout": 1.5, "request_timeout": 1.5 }, "log": { "level": "off" },
    });
    let service =
        Service::start(Config::from_json(&config.to_string()).expect("a configuration")).expect("a free port");
    let keyspace = keyspace(&service);
    let content: Vec<u64> = (1..=300_000).collect();
    let names: Vec<_> = hash::prefix_hashes(&content).into_iter().map(BlockHash).collect();
    keyspace.index().store("w", 0, Tier::Gpu, None, &names, &content).expect("equal lengths");
    let dump = || {
        // Small buffers, so that the service notices each read.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(64 << 10).expect("an option");
        socket.connect(&service.address().into()).expect("it listens");
        let mut client = Client::over(TcpStream::from(socket));
        client.send("GET /dump HTTP/1.0\r\n\r\n");
        client
    };
    let mut first = dump();
    let mut piece = vec![0; 64 << 10];
    first.stream().read_exact(&mut piece).expect("it begins");
    let mut second = dump();
    // The first client reads slowly, which is allowed, for longer than the idle limit.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(40));
        first.stream().read_exact(&mut piece).expect("it goes on");
    }
    let mut rest = Vec::new();
    first.stream().read_to_end(&mut rest).expect("an answer");
    assert!(rest.ends_with(b"]}]}"));
    let answer = second.answer();
    assert!(answer.body.starts_with(b"\n"), "it waited");
    let dump = answer.json();
    let events = dump["keyspaces"][0]["events"].as_array().expect("a list");
    let blocks = |event: &Value| event["event"]["data"]["stored"]["blocks"].as_array().map_or(0, Vec::len);
    assert_eq!(events.iter().map(blocks).sum::<usize>(), 300_000);
}

#[test]
fn a_dump_is_all_there_is() {
    let service = start();
    let keyspace = keyspace(&service);
    fill(&keyspace.index(), &mut Random(3));
    let mut client = Client::to(service.address());
    client.send("GET /dump HTTP/1.0\r\n\r\n");
    let dump = client.answer().json();
    let events = dump["keyspaces"][0]["events"].as_array().expect("a list");
    let expected = keyspace.index().dump();
    assert_eq!(events.len(), expected.len());
    assert!(events.len() > 20);
    for (event, expected) in events.iter().zip(expected) {
        let Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } = expected else {
            panic!("a dump is made of stores, got {expected:?}")
        };
        let id = worker.parse::<u64>().map_or_else(|_| json!(worker), |number| json!(number));
        assert_eq!(event["worker_id"], id);
        assert_eq!(event["event"]["dp_rank"], rank);
        let tiers =
            [(Tier::Gpu, "device"), (Tier::Cpu, "host_pinned"), (Tier::Disk, "disk"), (Tier::External, "external")];
        assert!(tiers.contains(&(tier, event["storage_tier"].as_str().expect("a tier"))));
        let stored = &event["event"]["data"]["stored"];
        assert_eq!(stored["parent_hash"], json!(parent.map(|parent| parent.0)));
        let blocks = block_hashes.iter().zip(content_hashes);
        let blocks = blocks
            .map(|(block, content)| json!({ "block_hash": block.0, "tokens_hash": content, "mm_extra_info": null }));
        assert_eq!(stored["blocks"], blocks.collect::<Value>());
    }
}

#[test]
fn an_engine_that_is_registered_later_takes_nothing_from_readiness() {
    let service = start();
    // A worker that has published nothing counts as an engine whose events are known.
    let silent = Publisher::start(0);
    let register = |name: &str, endpoint: &str| {
        let engine = json!({ "instance_id": name, "endpoint": endpoint, "model_name": "m", "block_size": BLOCK_SIZE });
        service.follower().register(&engine.to_string(), None).expect("registered");
    };
    register("first", &silent.events);
    eventually("it is ready", || get(&service, "/ready").0 == 200);
    register("later", "tcp://127.0.0.1:9");
    let (status, body) = get(&service, "/ready");
    assert_eq!((status, &body["ready"]), (200, &json!(true)));
    assert_eq!(body["waiting"]["streams"][0]["instance_id"], "later");
    assert!(service.follower().waiting().is_some());
    let (status, body) = get(&service, "/ready?strict=1");
    assert_eq!((status, &body["ready"]), (503, &json!(false)));
    assert_eq!(body["waiting"]["streams"][0]["instance_id"], "later");
    assert_eq!(get(&service, "/ready?strict=0").0, 200);
    service.follower().fleet().drain();
    let (status, body) = get(&service, "/ready");
    assert_eq!((status, &body["waiting"]["draining"]), (503, &json!(true)));
}

#[test]
fn answers_say_of_whom_something_is_missing() {
    let service = start();
    keyspace(&service);
    let tokens: Vec<u32> = (0..8).collect();
    let queries = [
        ("/query", json!({ "model_name": "m", "token_ids": tokens })),
        ("/query_batch", json!({ "model_name": "m", "queries": [{ "token_ids": tokens }] })),
    ];
    for (path, query) in &queries {
        assert_eq!(post(&service, path, query).get("partial"), None);
    }
    // Events published before are unknown.
    let late = Publisher::start(0);
    let engine = json!({ "instance_id": "late", "endpoint": late.events, "model_name": "m", "block_size": BLOCK_SIZE });
    service.follower().register(&engine.to_string(), None).expect("registered");
    for (path, query) in &queries {
        let partial = || post(&service, path, query).get("partial").cloned();
        eventually("something is missing", || partial().is_some());
        assert_eq!(partial(), Some(json!([{ "instance_id": "late", "dp_rank": 0 }])), "{path}");
    }
}
