//! Runs a router with the configuration in a file: `router CONFIG.json`, which has every field that `defaults.json` has. The
//! router ends when its standard input does.

use std::io::Read as _;
use std::time::Duration;

use kvatlas_router::{Config, Router};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: router CONFIG.json")?;
    let router = Router::start(Config::from_json(&std::fs::read_to_string(path)?)?)?;
    eprintln!("listening at {}", router.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    router.drain(Duration::from_secs(10), Duration::ZERO);
    Ok(())
}
