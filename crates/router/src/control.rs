//! Background tasks for the engines: health checks, queries of their models and their load, and the closing of unused
//! connections.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use kvatlas_follow::Follower;
use kvatlas_routing::Load;

use crate::app::App;
use crate::clock::millis;
use crate::config::HealthConfig;
use crate::counts::RefusalLog;
use crate::engines::diagnosis;
use crate::engines::health_check::{self, is_from_gateway};
use crate::engines::slowness::{self, SpeedGap};
use crate::engines::{
    Engine, EngineMetrics, HealthState, Kind, LIST, MAX_MODELS, MAX_NAME, Models, SHORT, SLEEP_PATH, get, lines,
    read_sleep,
};
use crate::placing::Places;

/// Pause between two readings of the metrics of an engine from which other engines pull blocks. The readings show that
/// this engine is alive.
const SIGN_PAUSE: Duration = Duration::from_millis(400);
/// Pause between two rounds of checks over all engines.
const TICK: Duration = Duration::from_millis(250);

/// Number of rounds of checks between two comparisons of the engines' speeds. Comparisons are rarer than rounds because
/// each one locks the state from which engines are chosen.
const LOOKS_BETWEEN_SPEEDS: u64 = 4;

/// Pause before the next question to an engine that did not report whether it is asleep.
const NO_ROUTE_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of an engine's models named in one log line.
const SHOWN: usize = 16;

/// Minimum pause between two health checks of an engine, however many of its requests fail.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// Checks all engines periodically until the router ends.
pub(crate) async fn run(app: Arc<App>) {
    let mut minders: std::collections::HashMap<usize, tokio::task::JoinHandle<()>> = std::collections::HashMap::new();
    let (mut tick, mut refusals) = (0_u64, RefusalLog::default());
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
            let (stillness, last) = engine.stillness();
            engine.signs.look(last, if engine.is_at_work() { stillness } else { Duration::ZERO });
            let silence = app.config.health.silence;
            let silent = !silence.is_zero() && engine.silence() > silence;
            engine.health.set_silent(silent);
        }
        trust(app.follower.as_deref(), &app.places, &engines);
        app.places.no_engine.look();
        engines.iter().filter(|engine| engine.pull.is_some()).for_each(|engine| app.places.keep_pulls(engine));
        if tick % LOOKS_BETWEEN_SPEEDS == 0 {
            compare_speeds(&app.places, &engines);
        }
        tick += 1;
        refusals.look(&app.counts.refused, Instant::now());
        engines.iter().for_each(|engine| diagnosis::look(app.follower.as_deref(), engine));
        app.reader.prompts.unread.look(Instant::now());
        tokio::time::sleep(TICK).await;
    }
}

/// Records for each rank of each engine whether the index knows its blocks reliably, and how many blocks the rank
/// holds.
fn trust(follower: Option<&Follower>, places: &Places, engines: &[Arc<Engine>]) {
    let Some(follower) = follower.filter(|_| places.wants().hashes) else { return };
    let keyspaces = follower.fleet().keyspaces();
    for engine in engines {
        let keyspace = keyspaces.iter().find(|keyspace| !keyspace.streams_of(&engine.name).is_empty());
        let streams = keyspace.map(|keyspace| keyspace.streams_of(&engine.name)).unwrap_or_default();
        if let Some(ago) = streams.iter().filter_map(|(_, stream)| stream.status.silence()).min() {
            engine.signs.note_ago(ago);
        }
        let is_unverified = streams.iter().any(|(_, stream)| stream.status.unverified.load(Relaxed));
        engine.is_unverified.store(is_unverified, Relaxed);
        for (place, rank) in engine.config.ranks.numbers().enumerate() {
            let trusted = keyspace.is_some_and(|keyspace| keyspace.is_trusted(&engine.name, rank));
            places.set_trusted(engine, place, trusted);
        }
        let held = keyspace.map(|keyspace| keyspace.index().ranks_of(&engine.name)).unwrap_or_default();
        for (place, number) in engine.config.ranks.numbers().enumerate() {
            // A rank whose stream is gone holds nothing that is known.
            let blocks = held.iter().find(|rank| rank.rank == number).map_or(0, |rank| rank.device_blocks);
            places.report(engine, place, &Load { held_blocks: Some(blocks as f64), ..Load::default() });
            if let Some(keyspace) = keyspace.filter(|keyspace| keyspace.is_trusted(&engine.name, number)) {
                places.note_held(engine, place, blocks.saturating_mul(u64::from(keyspace.block_size)));
            }
        }
    }
}

/// Compares the speeds of engines that serve the same models, and records which engines are slow.
fn compare_speeds(places: &Places, engines: &[Arc<Engine>]) {
    let speeds: Vec<_> = places.seen_speeds(engines);
    let was: Vec<_> = engines.iter().map(|engine| engine.slowness.lock().is_some()).collect();
    let now = millis();
    let slow = slowness::slow_ones(&speeds, &was, now);
    for (at, engine) in engines.iter().enumerate() {
        let mut gap = engine.slowness.lock();
        *gap = SpeedGap::going_on(slow.get(&at).copied(), *gap, now);
        // An engine that hangs is late as well.
        if gap.and_then(|gap| gap.late).is_some_and(|late| !engine.health.is_well_since(late.since)) {
            engine.health.check_soon();
        }
    }
}

/// Reads an engine's load from its metrics periodically.
async fn follow_load(health: &HealthConfig, places: &Places, engine: &Engine) {
    if health.load_interval.is_zero() {
        return;
    }
    let mut pause = health.load_interval;
    loop {
        let mut reported = EngineMetrics::default();
        let asked = lines(engine, "/metrics", |line| reported.add(line));
        let asked = tokio::time::timeout(health.timeout, asked).await;
        if !matches!(asked, Ok(Ok(200))) {
            reported = EngineMetrics::default();
        }
        engine.counts.oversized.fetch_add(reported.left_out, Relaxed);
        let (sleeps, loads) = (reported.is_asleep(), reported.into_loads());
        if let Ok(Ok(status)) = asked {
            if !is_from_gateway(status) {
                engine.signs.note();
            }
            engine.signs.note_reported(loads.values().filter_map(|load| Some(load.running? + load.waiting?)).sum());
            if engine.health.sleep.note_metrics(sleeps) {
                places.is_back();
            }
        }
        // One without metrics of a known kind is asked seldom.
        let is_known = !loads.is_empty() || sleeps.is_some();
        pause = if is_known { health.load_interval } else { (pause * 2).min(Duration::from_secs(60)) };
        if engine.pulls() {
            // Others pull from it only if it gave a sign of life a moment ago.
            pause = pause.min(SIGN_PAUSE);
        }
        // Some count their ranks from 0 in metrics, whatever their numbers are.
        let ranks = &engine.config.ranks;
        let are_numbers = loads.keys().all(|rank| ranks.place(*rank).is_some());
        for (rank, load) in loads {
            let place = if are_numbers { ranks.place(rank) } else { Some(rank as usize) };
            if let Some(place) = place {
                places.report(engine, place, &load);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Runs the periodic work for one engine: checks its health, queries its models, and reads its metrics.
async fn look_after(app: Arc<App>, engine: Arc<Engine>) {
    tokio::join!(mind(&app, &engine), follow_load(&app.config.health, &app.places, &engine));
}

/// Checks one engine's health, models and kind (vLLM or SGLang) in a loop that never ends.
async fn mind(app: &App, engine: &Engine) {
    let health = &app.config.health;
    let (mut knows_models, mut knows_kind) = (false, engine.config.handover.is_some());
    let (mut is_warned, mut has_known_kind) = (false, false);
    let mut asks_for_sleep_at = Instant::now();
    loop {
        let began = millis();
        let found = health_check::ask(health, engine).await;
        let why_not = found.why_not();
        let well = why_not.is_none();
        if well {
            engine.health.note_well(began);
        }
        *engine.why_not.lock() = why_not.map(str::to_owned);
        let was_down = engine.health.is_down();
        if !health.interval.is_zero() && engine.health.note_check(&found) {
            match why_not {
                Some(why) => {
                    diagnosis::look(app.follower.as_deref(), engine);
                    if app.fleet.engines().iter().all(|engine| engine.health.standing() == HealthState::Down) {
                        tracing::error!(
                            "every engine is down, and requests fail: check that the engines run and that the router \
                             reaches them; the last one said: {why}"
                        );
                    }
                }
                None => diagnosis::look(app.follower.as_deref(), engine),
            }
            if was_down || !well {
                app.proxy.tokens.forget(engine);
            }
            if well {
                engine.side_routes.forget();
                app.places.is_back();
            }
        }
        if well {
            match ask_models(health.timeout, engine).await {
                Ok(()) => {
                    (knows_models, is_warned) = (true, false);
                    count_models(app, engine);
                }
                Err(why) if !is_warned && engine.config.models.is_empty() => {
                    is_warned = true;
                    tracing::warn!(
                        engine = &*engine.name,
                        reason = why,
                        "the engine does not say which models it serves, so that it gets requests only for models that \
                         no other engine is known to serve, as far as it has not said it before: {why}"
                    );
                }
                Err(_) => {}
            }
        }
        // An engine that was away may come back as one of another kind.
        knows_kind &= well || engine.config.handover.is_some();
        if well && !knows_kind {
            let asked = tokio::time::timeout(health.timeout, kind(engine)).await;
            if let Ok(Some(kind)) = asked {
                let before = engine.kind.swap(Some(Arc::new(kind)));
                // After a change of its settings it is asked again, and what was seen of it stays true.
                if has_known_kind || before.as_deref() != Some(&kind) {
                    engine.side_routes.forget();
                }
                has_known_kind = true;
                app.fleet.compare_dialects();
                app.places.is_back();
                knows_kind = true;
            }
        }
        if well && asks_for_sleep_at <= Instant::now() {
            let asked = tokio::time::timeout(health.timeout, get(engine, SLEEP_PATH, SHORT)).await;
            let said = asked.ok().and_then(Result::ok).and_then(|(status, body)| read_sleep(status, &body));
            if engine.health.sleep.note_route(said) {
                app.places.is_back();
            }
            // Most do not have it, and log each question.
            asks_for_sleep_at = Instant::now() + if said.is_some() { Duration::ZERO } else { NO_ROUTE_PAUSE };
        }
        engine.is_known.store(true, Relaxed);
        // An engine that is starting is asked more often, so that it is used as soon as it can be.
        let pause = if health.interval.is_zero() { Duration::from_secs(5) } else { health.interval };
        let soon = !well
            || !knows_kind
            || engine.health.sleep.is_asleep()
            || (engine.config.models.is_empty() && !knows_models);
        let pause = if soon { pause.min(Duration::from_secs(1)) } else { pause };
        let least = pause.min(LEAST_PAUSE);
        tokio::time::sleep(least).await;
        let _ = tokio::time::timeout(pause - least, engine.health.wait_for_doubt()).await;
    }
}

/// Creates the counters of an engine's models, so that the metrics show these models before their first request.
fn count_models(app: &App, engine: &Engine) {
    let models = engine.models.load();
    let own = models.names.iter().filter(|model| model.parent.is_none()).take(SHOWN);
    for model in own {
        let counts = app.counts.models.of(Some(&model.name), |name| models.counted_as(name).map(str::to_owned));
        engine.counts.models.of(&counts.name);
    }
}

/// Asks an engine for its kind (vLLM or SGLang); None if the engine does not answer, or the kind cannot be determined.
///
/// The path that only vLLM has is queried first: in its development mode, vLLM answers the first of SGLang's paths too,
/// and starts dozens of processes for each answer there.
async fn kind(engine: &Engine) -> Option<Kind> {
    let (status, version) = get(engine, Kind::VERSION_PATH, SHORT).await.ok()?;
    if status == 200 {
        return Some(Kind::vllm(&version));
    }
    if status >= 500 {
        return None;
    }
    let mut is_hidden = false;
    for path in Kind::PATHS {
        let (status, body) = get(engine, path, LIST).await.ok()?;
        if status >= 500 {
            return None;
        }
        is_hidden |= matches!(status, 300..=399 | 401 | 403 | 407);
        if let Some(kind) = (status == 200).then(|| Kind::sglang(&body)).flatten() {
            return Some(kind);
        }
    }
    // An engine that hides these paths may be SGLang.
    (!is_hidden).then(|| Kind::vllm(&version))
}

/// Asks an engine for the models that it serves and the maximum length of their prompts. The error is the reason for a
/// missing answer, as text.
async fn ask_models(timeout: Duration, engine: &Engine) -> Result<(), String> {
    let why_not = match tokio::time::timeout(timeout, get(engine, "/v1/models", LIST)).await {
        Ok(Ok((200, body))) => match Models::read(&body) {
            Some(said) => {
                let left_out = said.left_out;
                engine.counts.oversized.fetch_add(left_out, Relaxed);
                if engine.takes_list(said.models) {
                    let models = engine.models.load();
                    let names: Vec<_> = models.names.iter().map(|model| &*model.name).take(SHOWN).collect();
                    let count = models.names.len();
                    tracing::info!(engine = &*engine.name, count, models = names.join(", "), "models of the engine");
                    if left_out > 0 {
                        tracing::warn!(
                            engine = &*engine.name,
                            left_out,
                            "the engine lists more than {MAX_MODELS} models, or names of more than {MAX_NAME} bytes: those \
                             are left out"
                        );
                    }
                }
                return Ok(());
            }
            None => "lists no models".to_owned(),
        },
        Ok(Ok((status @ (401 | 403), _))) => {
            format!("returns status {status}: give the router the engine's key (--engine-key-file)")
        }
        Ok(Ok((status, _))) => format!("returns status {status}"),
        Ok(Err(why)) => format!("fails: {why}"),
        Err(_) => format!("is not answered within {timeout:?}"),
    };
    Err(format!("GET /v1/models {why_not}"))
}
