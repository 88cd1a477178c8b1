//! Routes `/digest` and `/sites` of a service above several sites, which receives digests (summaries of the sites'
//! indexes) and answers which sites hold a prompt.

use hyper::{Response, StatusCode};
use kvatlas_digest::{Answer as Bounds, DigestEffect, Level, Proof, SiteStatus, marks_of_prompt};
use kvatlas_follow::register::DEFAULT_ROUTING_GROUP;
use kvatlas_follow::sites::{Top, state_name};
use kvatlas_index::hash::content_hashes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, Answer, Refusal};
use crate::app::App;

/// Maximum block size, in tokens, that a digest (summary of a site's index) may have.
const LARGEST_BLOCK: u32 = 1 << 20;
/// Maximum length, in bytes, of the name of a model or a routing group.
const LONGEST_NAME: usize = 1024;

fn check_role(app: &App) -> Result<(), Refusal> {
    if app.follower.sites().is_global() {
        return Ok(());
    }
    let message = "this service follows engines; only one that was started with --role global takes in digests";
    Err(Refusal::new(StatusCode::CONFLICT, "not_global", message))
}

fn answered(value: &Value) -> Response<Answer> {
    answer::json(StatusCode::OK, value.to_string())
}

/// Answers `/digest`: applies a digest (summary of a site's indexed blocks). `parameters` is the query string of the
/// URL, which names the digest's model and routing group.
pub(crate) fn digest(app: &App, parameters: &str, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    check_role(app)?;
    let (mut model, mut routing_group, mut block_size) = (None, DEFAULT_ROUTING_GROUP.to_owned(), None);
    for (key, value) in form_urlencoded::parse(parameters.as_bytes()) {
        match &*key {
            "model_name" => model = Some(value.into_owned()),
            "routing_group" => routing_group = value.into_owned(),
            "block_size" => block_size = value.parse().ok().filter(|size| (1..=LARGEST_BLOCK).contains(size)),
            _ => {
                let message = format!("unknown parameter {key:?}: there are model_name, routing_group and block_size");
                return Err(Refusal::invalid("unknown_parameter", message));
            }
        }
    }
    let (Some(model), Some(block_size)) = (model, block_size) else {
        let message = format!("give model_name, and block_size as a number from 1 to {LARGEST_BLOCK}, in the URL");
        return Err(Refusal::invalid("malformed_parameters", message));
    };
    for (what, name) in [("model_name", &model), ("routing_group", &routing_group)] {
        if !(1..=LONGEST_NAME).contains(&name.len()) {
            let message = format!("{what} must have 1 to {LONGEST_NAME} bytes, got {}", name.len());
            return Err(Refusal::invalid("malformed_parameters", message));
        }
    }
    let applied = app.follower.sites().apply(&model, &routing_group, block_size, body)?;
    Ok(answered(&json!({ "status": "ok", "new": applied == DigestEffect::Now })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    model_name: String,
    routing_group: Option<String>,
    token_ids: Option<Vec<u32>>,
    content_hashes: Option<Vec<u64>>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

/// Answers `/sites`: lists the sites that hold leading blocks of a prompt, with lower and upper bounds on their number.
pub(crate) fn find(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    check_role(app)?;
    let query: Query = serde_json::from_slice(body)?;
    let top =
        app.follower.sites().get(&query.model_name, query.routing_group.as_deref().unwrap_or(DEFAULT_ROUTING_GROUP))?;
    let (lora, salt) = (query.lora_name.as_deref(), query.cache_salt.as_deref());
    let hashes = match (query.token_ids, query.content_hashes) {
        (Some(tokens), None) => content_hashes(&tokens, top.block_size as usize, lora, salt),
        (None, Some(hashes)) if lora.is_none() && salt.is_none() => hashes,
        (None, Some(_)) => return Err(Refusal::wrong_type("lora_name and cache_salt go with token_ids only")),
        _ => return Err(Refusal::wrong_type("give either token_ids or content_hashes")),
    };
    let sites = top.read();
    let marks = marks_of_prompt(&hashes, sites.grain());
    let blocks = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
    let Bounds { levels, rest_at_most, unknown, probe } = sites.find(&marks, blocks, app.follower.sites().now());
    let names = |all: &[u32]| all.iter().map(|&site| sites.name(site)).collect::<Vec<_>>();
    let tokens = |blocks: u32| u64::from(blocks) * u64::from(top.block_size);
    let level = |Level { at_least, at_most, sites }: &Level| json!({ "at_least": tokens(*at_least), "at_most": tokens(*at_most), "sites": names(sites) });
    Ok(answered(&json!({
        "block_size": top.block_size,
        "length": tokens(blocks),
        "levels": levels.iter().map(level).collect::<Vec<_>>(),
        "rest_at_most": tokens(rest_at_most),
        "unknown": names(&unknown),
        "probe": probe.map(|(site, at_least)| json!({ "site": sites.name(site), "at_least": tokens(at_least) })),
    })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Comparison {
    model_name: String,
    routing_group: Option<String>,
    site: String,
    at_least: u64,
    at_most: u64,
    was: u64,
    #[serde(default)]
    by_engine: bool,
}

/// Answers `/sites/compare`: compares the bounds that the digests (index summaries) of a site had given for a prompt
/// with the depth that the site's own index, or the engine, really had.
pub(crate) fn compare(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    check_role(app)?;
    let it: Comparison = serde_json::from_slice(body)?;
    let top = app.follower.sites().get(&it.model_name, it.routing_group.as_deref().unwrap_or(DEFAULT_ROUTING_GROUP))?;
    let proof = if it.by_engine { Proof::Engine } else { Proof::Answer };
    let blocks = |tokens: u64| u32::try_from(tokens / u64::from(top.block_size)).unwrap_or(u32::MAX);
    let known = top.write().compare(&it.site, blocks(it.at_least), blocks(it.at_most), blocks(it.was), proof);
    Ok(answered(&json!({ "status": "ok", "known": known })))
}

/// Answers `/sites/status`: reports the state of all sites, for each model and routing group.
pub(crate) fn status(app: &App) -> Result<Response<Answer>, Refusal> {
    check_role(app)?;
    let now = app.follower.sites().now();
    let list = |top: &Top| {
        let rows = top.read().list(now);
        rows.into_iter().map(|site| row(top, &site)).collect::<Vec<_>>()
    };
    let rows: Vec<Value> = app.follower.sites().all().iter().flat_map(|top| list(top)).collect();
    Ok(answered(&Value::Array(rows)))
}

fn row(top: &Top, site: &SiteStatus) -> Value {
    json!({
        "site": site.site,
        "model_name": top.model,
        "routing_group": top.routing_group,
        "block_size": top.block_size,
        "state": state_name(site.state),
        "age": site.age.as_secs_f64(),
        "seq": site.seq,
        "marks": site.marks,
        "bytes": site.bytes,
        "trust": site.trust,
        "compared": site.compared,
        "short": site.short,
    })
}
