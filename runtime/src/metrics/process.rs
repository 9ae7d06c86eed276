//! The standard `process_*` metrics, read from `/proc` when a scrape asks.
//!
//! Where `/proc` is absent they keep their last value: a scrape never fails for them.

use std::fs;

use prometheus::{Counter, Gauge, Opts, Registry};

/// Clock ticks per second in `/proc/self/stat`: fixed at 100 for user space on every Linux architecture.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) struct Process {
    cpu_seconds: Counter,
    open_fds: Gauge,
    max_fds: Gauge,
    virtual_memory_bytes: Gauge,
    resident_memory_bytes: Gauge,
    threads: Gauge,
    start_time_seconds: Gauge,
}

impl Process {
    pub(super) fn register(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| super::register(registry, Gauge::with_opts(Opts::new(name, help)));
        Process {
            cpu_seconds: super::register(
                registry,
                Counter::new("process_cpu_seconds_total", "User and system processor time in seconds."),
            ),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge("process_max_fds", "Limit of open file descriptors."),
            virtual_memory_bytes: gauge("process_virtual_memory_bytes", "Virtual memory in bytes."),
            resident_memory_bytes: gauge("process_resident_memory_bytes", "Resident memory in bytes."),
            threads: gauge("process_threads", "Threads."),
            start_time_seconds: gauge(
                "process_start_time_seconds",
                "Start of the process, in seconds since the epoch.",
            ),
        }
    }

    pub(super) fn refresh(&self) {
        if let Ok(stat) = fs::read_to_string("/proc/self/stat") {
            self.read_stat(&stat);
        }
        if let Some(status) = read("/proc/self/status") {
            set(&self.virtual_memory_bytes, field(&status, "VmSize:").map(|kib| kib * 1024.0));
            set(&self.resident_memory_bytes, field(&status, "VmRSS:").map(|kib| kib * 1024.0));
            set(&self.threads, field(&status, "Threads:"));
        }
        if let Ok(descriptors) = fs::read_dir("/proc/self/fd") {
            // The listing itself holds one.
            self.open_fds.set(descriptors.count().saturating_sub(1) as f64);
        }
        if let Some(limits) = read("/proc/self/limits") {
            set(&self.max_fds, field(&limits, "Max open files"));
        }
    }

    /// Fields are counted from 3 after the command's closing parenthesis (`man 5 proc_pid_stat`): 14 utime, 15 stime,
    /// 22 starttime, all in ticks.
    fn read_stat(&self, stat: &str) {
        let Some((_, after_command)) = stat.rsplit_once(')') else { return };
        let ticks = |field: usize| after_command.split_whitespace().nth(field - 3).and_then(|x| x.parse::<f64>().ok());
        if let (Some(user), Some(system)) = (ticks(14), ticks(15)) {
            let seconds = (user + system) / TICKS_PER_SECOND;
            self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        }
        let boot = read("/proc/stat").and_then(|stat| field(&stat, "btime"));
        if let (Some(start), Some(boot)) = (ticks(22), boot) {
            self.start_time_seconds.set(boot + start / TICKS_PER_SECOND);
        }
    }
}

/// The most memory that this process has had at a time, in bytes; nothing where `/proc` is absent.
pub fn peak_resident_bytes() -> Option<u64> {
    let kib = field(&read("/proc/self/status")?, "VmHWM:")?;
    Some(kib as u64 * 1024)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn set(gauge: &Gauge, value: Option<f64>) {
    if let Some(value) = value {
        gauge.set(value);
    }
}

/// The first number after `name` in the line that starts with it.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_first_number_of_their_line() {
        let status = "VmPeak:\t  10 kB\nVmRSS:\t    7312 kB\nThreads:\t3\n";
        assert_eq!(field(status, "VmRSS:"), Some(7312.0));
        assert_eq!(field(status, "Threads:"), Some(3.0));
        assert_eq!(field(status, "VmSwap:"), None);
        assert_eq!(
            field("Max open files            1024                 4096  files\n", "Max open files"),
            Some(1024.0)
        );
    }

    /// A command may hold spaces and parentheses; fields are counted after its last one.
    #[test]
    fn processor_time_is_read_after_the_command() {
        let process = Process::register(&Registry::new());
        process.read_stat("7 (a) b) c) S 1 7 7 0 -1 4194560 99 0 0 0 250 50 0 0 20 0 4 0 12345 1 2");
        assert!((process.cpu_seconds.get() - 3.0).abs() < 1e-9);
    }
}
