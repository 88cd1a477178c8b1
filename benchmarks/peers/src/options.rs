//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str = "\
kvatlas and the released block indexes side by side.

  --workloads W1,W2     of W1 W2 W3 W4 W4r W5 (all)
  --only ours,smg       of ours ours+scores ours+names ours+reader smg smg-shards dynamo crtc (all)
  --phases time,memory  of time memory compare threads (all)
  --rounds N            medians are over these (3)
  --requests N          only the first N requests of the trace
  --quick               one round, 3,000 requests, short thread runs
  --trace FILE          a Mooncake JSONL trace; else KVATLAS_TRACES/conversation_trace.jsonl, else
                        shared/traces/ in or beside a parent directory, else a generated trace;
                        --trace generated asks for that
  --seed N              of routing, hashes, order of queries and the generated trace (1)
  --json FILE           write everything there, every round included
  --dump W1 FILE        write the workload's stream as JSON lines and measure nothing";

const INDEXES: [&str; 8] = ["ours", "ours+scores", "ours+names", "ours+reader", "smg", "smg-shards", "dynamo", "crtc"];

#[derive(Debug)]
pub struct Options {
    workloads: Option<Vec<String>>,
    only: Option<Vec<String>>,
    phases: Option<Vec<String>>,
    pub rounds: usize,
    pub requests: Option<usize>,
    pub thread_time: Duration,
    pub trace: Option<PathBuf>,
    pub seed: u64,
    pub json: Option<PathBuf>,
    pub dump: Option<(String, PathBuf)>,
}

impl Options {
    /// `None` if help was asked for.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            workloads: None,
            only: None,
            phases: None,
            rounds: 3,
            requests: None,
            thread_time: Duration::from_millis(1_000),
            trace: None,
            seed: 1,
            json: None,
            dump: None,
        };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "-h" | "--help" => return Ok(None),
                "--quick" => {
                    options.rounds = 1;
                    options.requests = Some(3_000);
                    options.thread_time = Duration::from_millis(300);
                }
                "--workloads" => options.workloads = Some(list(&value()?, &["W1", "W2", "W3", "W4", "W4r", "W5"])?),
                "--only" => options.only = Some(list(&value()?, &INDEXES)?),
                "--phases" => options.phases = Some(list(&value()?, &["time", "memory", "compare", "threads"])?),
                "--rounds" => options.rounds = number(&argument, &value()?)?.max(1),
                "--requests" => options.requests = Some(number(&argument, &value()?)?.max(1)),
                "--trace" => options.trace = Some(value()?.into()),
                "--seed" => options.seed = number(&argument, &value()?)? as u64,
                "--json" => options.json = Some(value()?.into()),
                "--dump" => {
                    let name = value()?;
                    options.dump = Some((name, value()?.into()));
                }
                _ => return Err(format!("unknown argument {argument:?}; --help lists them")),
            }
        }
        Ok(Some(options))
    }

    pub fn wants_workload(&self, name: &str) -> bool {
        wants(self.workloads.as_ref(), name)
    }

    pub fn wants_index(&self, name: &str) -> bool {
        wants(self.only.as_ref(), name)
    }

    pub fn wants_phase(&self, name: &str) -> bool {
        wants(self.phases.as_ref(), name)
    }
}

fn wants(chosen: Option<&Vec<String>>, name: &str) -> bool {
    chosen.is_none_or(|chosen| chosen.iter().any(|c| c == name))
}

fn list(value: &str, known: &[&str]) -> Result<Vec<String>, String> {
    let find = |part: &str| {
        let found = known.iter().find(|k| k.eq_ignore_ascii_case(part));
        found.map(|k| (*k).to_owned()).ok_or_else(|| format!("unknown {part:?}: one of {}", known.join(", ")))
    };
    value.split(',').map(find).collect()
}

fn number(argument: &str, value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| format!("{argument} needs a number, got {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::Options;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn chooses_and_refuses() {
        let options = parse("--only ours,smg --workloads w2 --rounds 1").unwrap().unwrap();
        assert!(options.wants_index("smg") && !options.wants_index("dynamo"));
        assert!(options.wants_workload("W2") && !options.wants_workload("W1"));
        assert!(options.wants_phase("memory"));
        assert!(parse("--only nobody").is_err());
        assert!(parse("--rounds many").is_err());
        assert!(parse("--rounds").is_err());
        assert!(parse("--help").unwrap().is_none());
    }
}
