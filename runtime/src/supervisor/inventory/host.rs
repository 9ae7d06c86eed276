//! The memory of the host.
//!
//! Memory that the process can get is what the kernel calls available, or less where a control group sets a limit: a
//! process that goes beyond that is killed, however much the machine has. Page cache that can be given up counts as
//! available in both.

use std::fs;
use std::path::Path;

/// The bytes of host memory that this process can get, `None` where the system does not say.
pub fn available_host_bytes() -> Option<u64> {
    available_bytes(Path::new("/"))
}

/// The bytes of host memory that this process can have in all: what it can get, and what it holds.
pub fn reachable_host_bytes() -> Option<u64> {
    reachable_bytes(Path::new("/"))
}

/// The bytes of memory that the host has, `None` where the system does not say.
pub fn total_host_bytes() -> Option<u64> {
    Some(field(&read(Path::new("/proc/meminfo"))?, "MemTotal:")? << 10)
}

/// [`available_host_bytes`] of the system whose files lie below `root`.
fn available_bytes(root: &Path) -> Option<u64> {
    let meminfo = read(&root.join("proc/meminfo"))?;
    let of_machine = field(&meminfo, "MemAvailable:")? << 10;
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| group_bytes(&root.join("sys/fs/cgroup"), line)).min();
    Some(of_groups.map_or(of_machine, |of_groups| of_groups.min(of_machine)))
}

/// [`reachable_host_bytes`] of the system whose files lie below `root`. Pages of files are not held: they are available.
fn reachable_bytes(root: &Path) -> Option<u64> {
    let held = read(&root.join("proc/self/status")).and_then(|status| field(&status, "RssAnon:")).unwrap_or(0);
    Some(available_bytes(root)?.saturating_add(held << 10))
}

/// The files of a control group that say what memory it has.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the page cache that goes first when memory is short.
    inactive: &'static str,
}

const VERSION_1: GroupFiles =
    GroupFiles { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", inactive: "total_inactive_file" };
const VERSION_2: GroupFiles = GroupFiles { limit: "memory.max", used: "memory.current", inactive: "inactive_file" };

/// What the control group of a line of `/proc/self/cgroup` (`NUMBER:CONTROLLERS:PATH`) leaves, the groups that it is in
/// included; `None` if none of them has a limit.
fn group_bytes(mount: &Path, line: &str) -> Option<u64> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let (mount, files) = match controllers {
        "" => (mount.to_owned(), VERSION_2),
        _ if controllers.split(',').any(|controller| controller == "memory") => (mount.join("memory"), VERSION_1),
        _ => return None,
    };
    // In a container the path may be the host's, of which only the root is mounted.
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
    groups.filter_map(|group| left_bytes(group, &files)).min()
}

/// What one control group leaves of its own limit, `None` if it has none.
fn left_bytes(group: &Path, files: &GroupFiles) -> Option<u64> {
    let number = |name: &str| -> Option<u64> { read(&group.join(name))?.trim().parse().ok() };
    // Version 2 writes `max` where there is no limit, version 1 a number beyond any machine's memory.
    let limit = number(files.limit)?;
    let used = number(files.used)?;
    let inactive = read(&group.join("memory.stat")).and_then(|stat| field(&stat, files.inactive)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(inactive)))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The number after `name` in the line that it begins.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| if words.next() == Some(name) { words.next()?.parse().ok() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       24682496 kB\nMemFree: 1 kB\nMemAvailable:   1000 kB\n";

    /// What is available on a system with these files.
    fn available(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        available_bytes(root.path())
    }

    #[test]
    fn without_a_group_it_is_what_the_kernel_calls_available() {
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[("proc/meminfo", "MemTotal: 5 kB\n")]), None);
        assert_eq!(available(&[("proc/meminfo", MEMINFO)]), Some(1000 << 10));
        // A group without a limit, and controllers of other things.
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/\nnonsense\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
            ("sys/fs/cgroup/memory.current", "7\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9\n"),
        ];
        assert_eq!(available(&files), Some(1000 << 10));
    }

    /// A limit of any group above binds too; what the group holds as page cache is given up before anything is killed.
    #[test]
    fn the_tightest_group_of_version_2_binds() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/pod/container\n"),
            ("sys/fs/cgroup/pod/container/memory.max", "900000\n"),
            ("sys/fs/cgroup/pod/container/memory.current", "100000\n"),
            ("sys/fs/cgroup/pod/memory.max", "850000\n"),
            ("sys/fs/cgroup/pod/memory.current", "400000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 300000\nactive_file 5\n"),
        ];
        assert_eq!(available(&files), Some(750_000));
        assert_eq!(available(&files[..4]), Some(800_000));
    }

    #[test]
    fn version_1_binds_at_the_root_of_its_mount_where_the_path_is_the_hosts() {
        let files = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/1f\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\n"),
        ];
        assert_eq!(available(&files), Some(100_000));
        let mut full = files;
        full[4].1 = "total_inactive_file 0\n";
        assert_eq!(available(&full), Some(0), "a group beyond its limit has nothing left");
    }

    /// Whatever this process holds already it can have again.
    #[test]
    fn what_is_held_counts_as_reachable() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        assert_eq!(reachable_bytes(root.path()), None);
        fs::write(root.path().join("proc/meminfo"), MEMINFO).unwrap();
        assert_eq!(reachable_bytes(root.path()), Some(1000 << 10));
        let status = "VmRSS:\t 70 kB\nRssAnon:\t 60 kB\nRssFile:\t 10 kB\n";
        fs::write(root.path().join("proc/self/status"), status).unwrap();
        assert_eq!(reachable_bytes(root.path()), Some(1060 << 10));
    }

    /// A machine has more than this test's own process, and the kernel says so on every Linux.
    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_says_what_it_has() {
        assert!(available_host_bytes().unwrap() > 1 << 20);
    }
}
