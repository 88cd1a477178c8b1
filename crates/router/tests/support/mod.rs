//! A router for the tests, and requests for it.

// Each test file uses a part of this.
#![allow(dead_code, unreachable_pub)]

use kvatlas_fake_engine::Server;
use kvatlas_router::{Config, Router};
use kvatlas_settings::merge;
use serde_json::{Value, json};

/// A router in front of engines; `more` goes over the settings that all tests share.
pub fn router(engines: &[&Server], more: Value) -> Router {
    let mut config: Value = serde_json::from_str(include_str!("../../defaults.json")).expect("the defaults");
    let shared = json!({
        "http": { "bind": "127.0.0.1:0", "threads": 2 },
        "policy": "round-robin",
        "health": { "interval": 0.1, "timeout": 30, "open": 0.5 },
        "log": { "level": "off" },
        "engines": engines.iter().enumerate().map(|(at, engine)| {
            json!({ "name": format!("e{at}"), "url": engine.url() })
        }).collect::<Vec<_>>(),
    });
    merge(&mut config, shared);
    merge(&mut config, more);
    Router::start(Config::from_json(&config.to_string()).expect("a configuration")).expect("a free port")
}

/// A request for a completion.
pub fn completion(more: Value) -> Value {
    let mut body = json!({ "model": "m", "prompt": "hello there" });
    merge(&mut body, more);
    body
}
