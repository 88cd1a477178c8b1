//! Reads what engines say of themselves at `/metrics`: vLLM's names and SGLang's.

use std::collections::BTreeMap;

use kvatlas_routing::Load;

/// Reads the loads in an engine's metrics, by data-parallel rank.
pub(crate) fn loads(text: &str) -> BTreeMap<u32, Load> {
    let mut loads: BTreeMap<u32, Load> = BTreeMap::new();
    let mut tokens: BTreeMap<u32, (Option<f64>, Option<f64>)> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("vllm:") || line.starts_with("sglang:")) {
        let Some((name, labels, value)) = parts(line) else { continue };
        let rank = label(labels, "engine").or_else(|| label(labels, "dp_rank"));
        let rank = rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
        let mut set = |field: fn(&mut Load) -> &mut Option<f64>| {
            let load = loads.entry(rank).or_default();
            *field(load) = Some(value);
        };
        match name {
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => set(|load| &mut load.waiting),
            "vllm:num_requests_running" | "sglang:num_running_reqs" => set(|load| &mut load.running),
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                set(|load| &mut load.kv_usage);
            }
            "vllm:cache_config_info" => {
                let blocks = label(labels, "num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
                if blocks.is_some() {
                    loads.entry(rank).or_default().capacity_blocks = blocks;
                }
            }
            "sglang:max_total_num_tokens" => tokens.entry(rank).or_default().0 = Some(value),
            "sglang:page_size" => tokens.entry(rank).or_default().1 = Some(value),
            _ => {}
        }
    }
    for (rank, (all, page)) in tokens {
        if let (Some(all), Some(page)) = (all, page.filter(|page| *page > 0.0)) {
            loads.entry(rank).or_default().capacity_blocks = Some(all / page);
        }
    }
    loads
}

/// Reads in an engine's metrics whether it is asleep. None: they do not say. It is not as long as one of its ranks is
/// awake.
pub(crate) fn is_asleep(text: &str) -> Option<bool> {
    let (mut is_awake, mut is_asleep) = (false, false);
    for line in text.lines().filter(|line| line.starts_with("vllm:engine_sleep_state")) {
        let Some((_, labels, value)) = parts(line).filter(|(name, ..)| *name == "vllm:engine_sleep_state") else {
            continue;
        };
        let state = label(labels, "sleep_state").filter(|_| value > 0.0);
        is_awake |= state == Some("awake");
        is_asleep |= state.is_some_and(|state| state != "awake");
    }
    (is_awake || is_asleep).then_some(!is_awake)
}

/// Splits a line into its name, its labels without their braces, and its value.
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

/// The value of a label, which these engines' have without escapes.
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
        let loads = loads(text);
        let first = loads[&0];
        assert_eq!(
            (first.running, first.waiting, first.kv_usage, first.capacity_blocks),
            (Some(3.0), None, Some(0.5), Some(1000.0))
        );
        assert_eq!((loads[&1].waiting, loads[&1].kv_usage), (Some(7.0), None));
        let text = "sglang:num_queue_reqs{dp_rank=\"2\"} 1\nsglang:max_total_num_tokens 640\nsglang:page_size 64\n";
        let loads = super::loads(text);
        assert_eq!((loads[&2].waiting, loads[&0].capacity_blocks), (Some(1.0), Some(10.0)));
    }
}
