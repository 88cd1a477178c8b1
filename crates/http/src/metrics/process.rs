//! Metrics of this process from the operating system, under the names of Prometheus' own clients. Linux only.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Clock ticks per second in `/proc`: 100 on all supported Linux architectures.
const TICKS: f64 = 100.0;

/// A collector that reads `/proc/self` on each request.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let field = |number: usize| field(&stat, number);
        if let (Some(user), Some(system)) = (field(14), field(15)) {
            let help = "CPU time in seconds, user and system";
            let encoder = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new((user + system) / TICKS).encode(encoder)?;
        }
        let started = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time).zip(field(22));
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let most = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory in bytes", kilobytes(&status, "VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory in bytes", kilobytes(&status, "VmSize:")),
            ("process_threads", "Threads", line(&status, "Threads:")),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "Maximum number of open file descriptors", most),
            (
                "process_start_time_seconds",
                "When the process started, in seconds since 1970",
                started.map(|(boot, ticks)| boot + ticks / TICKS),
            ),
        ] {
            if let Some(value) = value {
                let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(encoder)?;
            }
        }
        Ok(())
    }
}

/// A field of `stat` by its number in the manual. The second field, the name, may contain blanks.
fn field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn line(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn kilobytes(status: &str, name: &str) -> Option<f64> {
    line(status, name).map(|kilobytes| kilobytes * 1024.0)
}

fn boot_time(stat: &str) -> Option<f64> {
    line(stat, "btime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_system_writes() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 1234 9 9";
        assert_eq!((field(stat, 14), field(stat, 15), field(stat, 22)), (Some(150.0), Some(50.0), Some(1234.0)));
        assert_eq!((field("", 14), field("7 (a", 14)), (None, None));
        assert_eq!(kilobytes("VmSize:\t  12 kB\nVmRSS:\t   4 kB\n", "VmRSS:"), Some(4096.0));
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1.7e9));
    }
}
