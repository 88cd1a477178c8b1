//! The released block indexes in the open-loop load test of kvatlas: the same plan, the same driver, the same result.
//!
//! A process of its own and no counting allocator: nothing is here that a user of these crates would not have.

mod dynamo;
mod smg;
#[path = "../../wait.rs"]
mod wait;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvatlas_bench::{Error, Label, NULL, Options, Plan, RunResult, run, run_design, run_null};

const USAGE: &str = "\
usage: kvatlas-bench-peers --list
       kvatlas-bench-peers --plan FILE --index NAME --options JSON

The result is one JSON object on standard output, as kvatlas bench run makes it.";

const SMG: &str = "kv-index 2.0.0";
const DYNAMO: &str = "dynamo-kv-router 1.6.1";

/// (name, from, what is measured)
const INDEXES: [(&str, &str, &str); 7] = [
    ("smg-chain", SMG, "ChainIndex, one event thread; score_into keeping the deepest worker"),
    ("smg-lanes", SMG, "ChainIndex behind its LanePool, a lane for each event thread; score_into keeping the deepest"),
    ("dynamo-crtc", DYNAMO, "ConcurrentRadixTreeCompressed in its ThreadPoolIndexer; find_matches(hashes, false)"),
    ("dynamo-positional", DYNAMO, "PositionalIndexer in its ThreadPoolIndexer; find_matches(hashes, false)"),
    ("block-index", "kvatlas", "ours, for control: the answer as levels"),
    ("block-index-scores", "kvatlas", "ours, for control: every worker's depth spelled out"),
    (NULL, "kvatlas", "no index: what the driver, its queues and its threads reach by themselves"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    let said = match parse(&arguments) {
        Ok(Command::Help) => Ok(USAGE.to_owned()),
        Ok(Command::List) => Ok(INDEXES.map(|(name, from, about)| format!("{name:18}  {from}: {about}")).join("\n")),
        Ok(Command::Run { plan, index, options }) => ran(&plan, &index, &options).map_err(|e| e.to_string()),
        Err(error) => Err(format!("{error}\n{USAGE}")),
    };
    match said.and_then(|said| writeln!(out, "{said}").map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvatlas-bench-peers: {error}");
            ExitCode::from(2)
        }
    }
}

enum Command {
    Help,
    List,
    Run { plan: String, index: String, options: String },
}

fn parse(arguments: &[String]) -> Result<Command, String> {
    let (mut plan, mut index, mut options) = (None, None, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let slot = match argument.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            "--plan" => &mut plan,
            "--index" => &mut index,
            "--options" => &mut options,
            other => return Err(format!("there is no option {other}")),
        };
        *slot = Some(rest.next().ok_or_else(|| format!("{argument} needs a value"))?.clone());
    }
    let needed = |value: Option<String>, name: &str| value.ok_or_else(|| format!("{name} is missing"));
    Ok(Command::Run {
        plan: needed(plan, "--plan")?,
        index: needed(index, "--index")?,
        options: needed(options, "--options")?,
    })
}

fn ran(plan: &str, name: &str, options: &str) -> Result<String, Error> {
    let options = Options::from_json(options)?;
    let Some((_, from, about)) = INDEXES.iter().find(|(known, ..)| *known == name) else {
        return Err(Error::Index(format!("there is no index {name:?}; --list names them")));
    };
    let plan = Plan::load(Path::new(plan))?;
    let result = started(&plan, name, &options, label(name, from, about))?;
    serde_json::to_string(&result).map_err(|error| Error::Index(error.to_string()))
}

fn label(name: &str, from: &str, about: &str) -> Label {
    Label { name: name.to_owned(), about: about.to_owned(), version: from.to_owned() }
}

fn started(plan: &Plan, name: &str, options: &Options, label: Label) -> Result<RunResult, Error> {
    let never = Arc::new(AtomicBool::new(false));
    let (workers, block_size) = (plan.columns().worker_count, plan.columns().block_size);
    let (threads, jump) = (options.event_threads, options.jump_size.unwrap_or(dynamo::JUMP));
    match name {
        "smg-chain" => run(plan, options, label, &never, || smg::Chain::new(workers)),
        "smg-lanes" => run(plan, options, label, &never, || smg::Lanes::new(workers, threads)),
        "dynamo-crtc" => run(plan, options, label, &never, || Ok(dynamo::crtc(threads, block_size))),
        "dynamo-positional" => run(plan, options, label, &never, || Ok(dynamo::positional(threads, block_size, jump))),
        NULL => run_null(plan, options, &never),
        ours => run_design(plan, ours, options, &never),
    }
}
