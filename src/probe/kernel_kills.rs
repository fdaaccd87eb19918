//! How often the kernel has killed a process for want of memory: the difference tells whether it killed ours.

use std::fs;
use std::path::{Path, PathBuf};

use super::classify::KernelKills;

/// The counts at one moment.
pub(super) struct Count {
    /// In the control group that worker and driver share.
    group: Option<u64>,
    /// On the whole machine.
    machine: Option<u64>,
}

impl Count {
    /// Reads the counts as they are now. What can't be read stays unknown.
    pub(super) fn now() -> Self {
        let group = fs::read_to_string("/proc/self/cgroup")
            .ok()
            .and_then(|text| group_files(&text).into_iter().find_map(|file| counter(&file)));
        Count { group, machine: counter(Path::new("/proc/vmstat")) }
    }

    /// What happened between `self` and now.
    pub(super) fn since(&self) -> KernelKills {
        let now = Count::now();
        compare((self.group, now.group), (self.machine, now.machine))
    }
}

fn compare(group: (Option<u64>, Option<u64>), machine: (Option<u64>, Option<u64>)) -> KernelKills {
    let rose = |(before, after): (Option<u64>, Option<u64>)| Some(after? > before?);
    match (rose(group), rose(machine)) {
        (Some(true), _) => KernelKills::InGroup,
        (_, Some(true)) => KernelKills::OnMachine,
        (_, Some(false)) => KernelKills::None,
        (_, None) => KernelKills::Unknown,
    }
}

/// Files that may hold the count, for the contents of `/proc/self/cgroup`: control groups of version 2, then 1.
fn group_files(membership: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            files.push(Path::new("/sys/fs/cgroup").join(path).join("memory.events"));
            // Inside a container the path is often that of the host, and the group is mounted at the top.
            files.push(PathBuf::from("/sys/fs/cgroup/memory.events"));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            files.push(Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control"));
            files.push(PathBuf::from("/sys/fs/cgroup/memory/memory.oom_control"));
        }
    }
    files
}

/// The line `oom_kill <n>` of a file; the three files that have it agree on the name.
fn counter(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_the_count_is_kept() {
        let v2 = group_files("0::/user.slice/run-1.scope\n");
        assert_eq!(v2[0], Path::new("/sys/fs/cgroup/user.slice/run-1.scope/memory.events"));
        let v1 = group_files("5:cpu,cpuacct:/a\n4:memory:/docker/x:y\n");
        assert_eq!(v1[0], Path::new("/sys/fs/cgroup/memory/docker/x:y/memory.oom_control"));
        assert!(group_files("nonsense\n").is_empty());
    }

    #[test]
    fn reads_the_three_formats() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        for text in
            ["low 0\noom 9\noom_kill 4\noom_group_kill 2\n", "nr_free 1\noom_kill 4\n", "under_oom 0\noom_kill 4"]
        {
            fs::write(&file, text).unwrap();
            assert_eq!(counter(&file), Some(4));
        }
        fs::write(&file, "oom_kill_disable 0\n").unwrap();
        assert_eq!(counter(&file), None);
        assert_eq!(counter(&folder.path().join("absent")), None);
    }

    #[test]
    fn a_rise_is_sure_and_silence_is_not_always_known() {
        assert_eq!(compare((Some(1), Some(2)), (Some(1), Some(2))), KernelKills::InGroup);
        assert_eq!(compare((Some(1), Some(1)), (Some(1), Some(2))), KernelKills::OnMachine);
        assert_eq!(compare((None, None), (Some(5), Some(5))), KernelKills::None);
        assert_eq!(compare((Some(1), None), (None, Some(5))), KernelKills::Unknown);
    }
}
