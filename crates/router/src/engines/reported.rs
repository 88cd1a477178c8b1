//! Parser of engines' metrics at `/metrics`, with the metrics' names in vLLM and SGLang.

use std::collections::BTreeMap;

use kvatlas_routing::Load;

/// Maximum number of ranks that are read from an engine's metrics.
const MAX_RANKS: usize = 1024;

/// Numbers from an engine's metrics, parsed line by line.
#[derive(Debug, Default)]
pub(crate) struct EngineMetrics {
    loads: BTreeMap<u32, Load>,
    /// Size of the cache and of one page in tokens, where SGLang reports them, by rank.
    tokens: BTreeMap<u32, (Option<f64>, Option<f64>)>,
    is_awake: bool,
    is_asleep: bool,
    /// Number of lines of the metrics that were dropped because the lines concern more than the maximum number of
    /// ranks.
    pub(crate) left_out: u64,
}

impl EngineMetrics {
    /// Parses one line of an engine's metrics and stores its value if it is a known metric.
    pub(crate) fn add(&mut self, line: &str) {
        if !line.starts_with("vllm:") && !line.starts_with("sglang:") {
            return;
        }
        let Some((name, labels, value)) = parts(line) else { return };
        if name == "vllm:engine_sleep_state" {
            let state = label(labels, "sleep_state").filter(|_| value > 0.0);
            self.is_awake |= state == Some("awake");
            self.is_asleep |= state.is_some_and(|state| state != "awake");
            return;
        }
        let set: fn(&mut Load) -> &mut Option<f64> = match name {
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => |load| &mut load.waiting,
            "vllm:num_requests_running" | "sglang:num_running_reqs" => |load| &mut load.running,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                |load| &mut load.kv_usage
            }
            "vllm:cache_config_info" => |load| &mut load.capacity_blocks,
            "sglang:max_total_num_tokens" | "sglang:page_size" => |load| &mut load.capacity_blocks,
            _ => return,
        };
        let rank = label(labels, "engine").or_else(|| label(labels, "dp_rank"));
        let rank: u32 = rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
        let is_known = self.loads.contains_key(&rank) || self.tokens.contains_key(&rank);
        if !is_known && self.loads.len().max(self.tokens.len()) >= MAX_RANKS {
            self.left_out += 1;
            return;
        }
        match name {
            "sglang:max_total_num_tokens" => self.tokens.entry(rank).or_default().0 = Some(value),
            "sglang:page_size" => self.tokens.entry(rank).or_default().1 = Some(value),
            "vllm:cache_config_info" => {
                if let Some(blocks) = label(labels, "num_gpu_blocks").and_then(|blocks| blocks.parse().ok()) {
                    *set(self.loads.entry(rank).or_default()) = Some(blocks);
                }
            }
            _ => *set(self.loads.entry(rank).or_default()) = Some(value),
        }
    }

    /// Returns true if the engine is asleep, false if one of its ranks is awake, None if the metrics do not report
    /// sleep.
    pub(crate) fn is_asleep(&self) -> Option<bool> {
        (self.is_awake || self.is_asleep).then_some(!self.is_awake)
    }

    /// Returns the load of each data-parallel rank, by the rank's id in the metrics.
    pub(crate) fn into_loads(self) -> BTreeMap<u32, Load> {
        let mut loads = self.loads;
        for (rank, (all, page)) in self.tokens {
            if let (Some(all), Some(page)) = (all, page.filter(|page| *page > 0.0)) {
                loads.entry(rank).or_default().capacity_blocks = Some(all / page);
            }
        }
        loads
    }
}

/// Splits a line of an engine's metrics into the metric's name, its labels without braces, and its value; None if
/// malformed.
fn parts(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = match line.find('{') {
        Some(at) => {
            let end = line.rfind('}')?;
            (&line[..at], (line.get(at + 1..end)?, &line[end + 1..]))
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, ("", rest))
        }
    };
    let (labels, value) = rest;
    let value = value.split_ascii_whitespace().next()?.parse::<f64>().ok()?;
    value.is_finite().then_some((name, labels, value))
}

/// Returns the value of a metric's label; None if the label is missing. Escapes are not decoded, as vLLM and SGLang use
/// none.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    loop {
        let (key, value) = rest.split_once("=\"")?;
        let (value, next) = value.split_once('"')?;
        if key.trim_start_matches(',').trim() == name {
            return Some(value);
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> EngineMetrics {
        let mut reported = EngineMetrics::default();
        text.lines().for_each(|line| reported.add(line));
        reported
    }

    fn is_asleep(text: &str) -> Option<bool> {
        read(text).is_asleep()
    }

    #[test]
    fn engines_have_so_many_ranks_at_most() {
        let text: String =
            (0..5_000).map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n")).collect();
        let reported = read(&text);
        assert_eq!((reported.left_out as usize, reported.into_loads().len()), (5_000 - MAX_RANKS, MAX_RANKS));
    }

    #[test]
    fn engines_that_sleep() {
        let said = |states: &[(&str, u8)]| -> String {
            let line = |(state, value): &(&str, u8)| {
                format!("vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{state}\"}} {value}.0\n")
            };
            states.iter().map(line).collect()
        };
        for (states, expected) in [
            (&[("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)][..], Some(false)),
            (&[("awake", 0), ("weights_offloaded", 1), ("discard_all", 0)], Some(true)),
            (&[("awake", 0), ("weights_offloaded", 0), ("discard_all", 1)], Some(true)),
            (&[("awake", 1), ("weights_offloaded", 1)], Some(false)),
            // As before the first sleep of some versions.
            (&[("awake", 0), ("weights_offloaded", 0), ("discard_all", 0)], None),
            (&[], None),
        ] {
            assert_eq!(is_asleep(&said(states)), expected, "{states:?}");
        }
        assert_eq!(is_asleep("<html>vllm:engine_sleep_state</html>\nvllm:engine_sleep_state{broken 1\n"), None);
    }

    #[test]
    fn vllm_and_sglang() {
        let text = "# HELP x\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_waiting{engine=\"1\",model_name=\"m,\"} 7\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
            vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n\
            vllm:num_requests_running{broken\nvllm:kv_cache_usage_perc{engine=\"1\"} NaN\n";
        let loads = read(text).into_loads();
        let first = loads[&0];
        assert_eq!(
            (first.running, first.waiting, first.kv_usage, first.capacity_blocks),
            (Some(3.0), None, Some(0.5), Some(1000.0))
        );
        assert_eq!((loads[&1].waiting, loads[&1].kv_usage), (Some(7.0), None));
        let text = "sglang:num_queue_reqs{dp_rank=\"2\"} 1\nsglang:max_total_num_tokens 640\nsglang:page_size 64\n";
        let loads = read(text).into_loads();
        assert_eq!((loads[&2].waiting, loads[&0].capacity_blocks), (Some(1.0), Some(10.0)));
    }
}
