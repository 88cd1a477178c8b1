//! The router's work beside requests: it asks engines how they do, which models they serve, and closes what nobody
//! uses.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kvatlas_routing::Load;
use serde_json::Value;

use crate::app::App;
use crate::condition;
use crate::engine::{Engine, HealthState, Kind, Model, Models, get, loads};
use crate::lock;

/// Time between two looks at the engines.
const TICK: Duration = Duration::from_millis(250);

/// The least time between two questions to an engine, however often requests fail there.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// Looks after the engines for as long as the router lives.
pub(crate) async fn run(app: Arc<App>) {
    let mut minders: std::collections::HashMap<usize, tokio::task::JoinHandle<()>> = std::collections::HashMap::new();
    loop {
        let engines = app.fleet.engines().clone();
        // One task for each engine: one that hangs holds up nobody else.
        for engine in engines.iter() {
            let key = Arc::as_ptr(engine) as usize;
            minders.entry(key).or_insert_with(|| tokio::spawn(look_after(app.clone(), engine.clone())));
        }
        minders.retain(|key, task| {
            let is_there = engines.iter().any(|engine| Arc::as_ptr(engine) as usize == *key);
            if !is_there {
                task.abort();
            }
            is_there
        });
        for engine in engines.iter() {
            engine.pool.sweep();
            let silence = app.config.health.silence;
            let silent = !silence.is_zero() && engine.silence() > silence;
            if engine.health.set_silent(silent) {
                tracing::warn!(
                    engine = &*engine.name,
                    "the engine has requests but sends nothing: it is left out until it does"
                );
            }
        }
        trust(&app, &engines);
        engines.iter().for_each(|engine| condition::look(app.service.as_ref(), engine));
        app.prompts.unread.look(Instant::now());
        tokio::time::sleep(TICK).await;
    }
}

async fn look_after(app: Arc<App>, engine: Arc<Engine>) {
    tokio::join!(mind(app.clone(), engine.clone()), follow_load(app, engine));
}

/// Notes whether what the index says of each engine can be trusted, and how many blocks each has.
fn trust(app: &App, engines: &[Arc<Engine>]) {
    let Some(service) = app.service.as_ref().filter(|_| app.places.wants().hashes) else { return };
    let keyspaces = service.fleet().keyspaces();
    for engine in engines {
        let keyspace = keyspaces.iter().find(|keyspace| !keyspace.streams_of(&engine.name).is_empty());
        let streams = keyspace.map(|keyspace| keyspace.streams_of(&engine.name)).unwrap_or_default();
        let is_unverified = streams.iter().any(|(_, stream)| stream.status.unverified.load(Relaxed));
        engine.is_unverified.store(is_unverified, Relaxed);
        for (place, rank) in engine.config.ranks.numbers().enumerate() {
            let trusted = keyspace.is_some_and(|keyspace| keyspace.is_trusted(&engine.name, rank));
            app.places.set_trusted(engine, place, trusted);
        }
        let Some(keyspace) = keyspace else { continue };
        for rank in keyspace.index().ranks_of(&engine.name) {
            let load = Load { held_blocks: Some(rank.device_blocks as f64), ..Load::default() };
            if let Some(place) = engine.config.ranks.place(rank.rank) {
                app.places.report(engine, place, &load);
            }
        }
    }
}

/// Reads one engine's metrics, again and again, for as long as it has any.
async fn follow_load(app: Arc<App>, engine: Arc<Engine>) {
    let health = &app.config.health;
    if health.load_interval.is_zero() {
        return;
    }
    let mut pause = health.load_interval;
    loop {
        let asked = tokio::time::timeout(health.timeout, get(&engine, "/metrics")).await;
        let loads = match &asked {
            Ok(Ok((200, body))) => loads(&String::from_utf8_lossy(body)),
            _ => Default::default(),
        };
        // One without metrics of a known kind is asked seldom.
        pause = if loads.is_empty() { (pause * 2).min(Duration::from_secs(60)) } else { health.load_interval };
        // Some count their ranks from 0 in metrics, whatever their numbers are.
        let ranks = &engine.config.ranks;
        let are_numbers = loads.keys().all(|rank| ranks.place(*rank).is_some());
        for (rank, load) in loads {
            let place = if are_numbers { ranks.place(rank) } else { Some(rank as usize) };
            if let Some(place) = place {
                app.places.report(&engine, place, &load);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Asks one engine, again and again.
async fn mind(app: Arc<App>, engine: Arc<Engine>) {
    let health = &app.config.health;
    let (mut knows_models, mut knows_kind) = (false, engine.config.handover.is_some());
    loop {
        let why_not = match tokio::time::timeout(health.timeout, get(&engine, &health.path)).await {
            // One that does not know the question is there; one that is dead says 503 (vLLM), or nothing.
            Ok(Ok((status, _))) if status < 500 => None,
            Ok(Ok((status, _))) => Some(format!("GET {} returns status {status}", health.path)),
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("GET {} is not answered within {:?}", health.path, health.timeout)),
        };
        let well = why_not.is_none();
        lock(&engine.why_down).clone_from(&why_not);
        if !health.interval.is_zero() && engine.health.note_check(well) {
            match &why_not {
                Some(why) => {
                    tracing::warn!(engine = &*engine.name, reason = why, "the engine is down: {why}");
                    if app.fleet.engines().iter().all(|engine| engine.health.standing() == HealthState::Down) {
                        tracing::error!(
                            "every engine is down, and requests fail: check that the engines run and that the router \
                             reaches them; the last one said: {why}"
                        );
                    }
                }
                None => tracing::info!(engine = &*engine.name, "the engine is back"),
            }
            app.tokens.forget(&engine);
            if well {
                engine.side_routes.forget();
                app.places.is_back();
            }
        }
        if well && engine.config.models.is_empty() {
            let asked = tokio::time::timeout(health.timeout, get(&engine, "/v1/models")).await;
            if let Ok(Ok((200, body))) = asked
                && let Some(models) = models(&body)
            {
                if engine.models.load().names != models.names {
                    let names: Vec<_> = models.names.iter().map(|model| &*model.name).collect();
                    tracing::info!(engine = &*engine.name, models = names.join(", "), "models of the engine");
                    engine.models.store(Arc::new(models));
                }
                knows_models = true;
            }
        }
        // Whoever was away may come back as another one.
        knows_kind &= well || engine.config.handover.is_some();
        if well && !knows_kind {
            let asked = tokio::time::timeout(health.timeout, kind(&engine)).await;
            if let Ok(Some(kind)) = asked {
                engine.kind.store(Some(Arc::new(kind)));
                engine.side_routes.forget();
                app.fleet.compare_dialects();
                app.places.is_back();
                knows_kind = true;
            }
        }
        engine.is_known.store(true, Relaxed);
        // An engine that is starting is asked more often, so that it is used as soon as it can be.
        let pause = if health.interval.is_zero() { Duration::from_secs(5) } else { health.interval };
        let soon = !well || !knows_kind || (engine.config.models.is_empty() && !knows_models);
        let pause = if soon { pause.min(Duration::from_secs(1)) } else { pause };
        let least = pause.min(LEAST_PAUSE);
        tokio::time::sleep(least).await;
        let _ = tokio::time::timeout(pause - least, engine.health.wait_for_doubt()).await;
    }
}

/// Asks an engine for its kind. None: it does not answer now, or what it is cannot be seen.
async fn kind(engine: &Engine) -> Option<Kind> {
    let mut is_hidden = false;
    for path in Kind::PATHS {
        let (status, body) = get(engine, path).await.ok()?;
        if status >= 500 {
            return None;
        }
        is_hidden |= matches!(status, 300..=399 | 401 | 403 | 407);
        if let Some(kind) = (status == 200).then(|| Kind::sglang(&body)).flatten() {
            return Some(kind);
        }
    }
    let (status, body) = get(engine, Kind::VERSION_PATH).await.ok()?;
    // Only vLLM has this route. One that shows neither may be SGLang's.
    (status == 200 || status < 500 && !is_hidden).then(|| Kind::vllm(&body))
}

fn models(body: &[u8]) -> Option<Models> {
    let Value::Object(mut answer) = serde_json::from_slice(body).ok()? else { return None };
    let Value::Array(cards) = answer.remove("data")? else { return None };
    let model = |card: Value| {
        let parent = card.get("parent").and_then(Value::as_str).map(str::to_owned);
        Some(Model { name: card.get("id")?.as_str()?.to_owned(), parent, card })
    };
    Some(Models { names: cards.into_iter().filter_map(model).collect() })
}
