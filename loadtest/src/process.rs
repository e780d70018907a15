//! A process under test: started, watched, ended. Reads what the kernel says of it under /proc: CPU time of all its threads in
//! nanoseconds, resident memory, descriptors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failed;

/// A child process, with the children of its own.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    /// Starts a command; what it writes goes to a file in `folder`.
    pub(crate) fn start(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self, Failed> {
        let log = fs::File::create(folder.join(format!("{name}.log")))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        let child = child.map_err(|error| format!("{name} does not start: {error}"))?;
        Ok(Self { name, child })
    }

    /// Fails when the process has ended, with the end of what it wrote.
    pub(crate) fn check(&mut self, folder: &Path) -> Result<(), Failed> {
        if let Some(status) = self.child.try_wait()? {
            let told = fs::read_to_string(folder.join(format!("{}.log", self.name))).unwrap_or_default();
            let end: Vec<&str> = told.lines().rev().take(5).collect();
            return Err(format!("{} ended ({status}): {}", self.name, end.join(" | ")).into());
        }
        Ok(())
    }

    /// The process itself and its children.
    fn ids(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        std::iter::once(own).chain(children.split_whitespace().filter_map(|id| id.parse().ok())).collect()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result<(), Failed> {
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("no process")?;
        Ok(rustix::process::kill_process(id, signal)?)
    }

    /// Asks it to end, and waits until it has, in order.
    pub(crate) fn finish(mut self, patience: Duration) -> Result<(), Failed> {
        self.signal(rustix::process::Signal::TERM)?;
        let end = Instant::now() + patience;
        while Instant::now() < end {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{} ended badly: {status}", self.name).into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("{} did not end in {patience:?}", self.name).into())
    }

    /// CPU time so far, of threads that have ended too, in hundredths of a second (`proc_pid_stat(5)`): for long times, in which a
    /// store's connection and its thread are replaced.
    pub(crate) fn cpu_ever(&self) -> Duration {
        let of = |id: u32| -> Option<u64> {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
            // The name before may have spaces; behind it `utime` and `stime` are the twelfth and the next.
            let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
            Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
        };
        Duration::from_millis(10 * self.ids().into_iter().filter_map(of).sum::<u64>())
    }

    /// CPU time so far, of all threads.
    pub(crate) fn cpu(&self) -> Duration {
        let nanoseconds = self.ids().into_iter().flat_map(threads).filter_map(|thread| {
            let text = fs::read_to_string(thread.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    /// Resident memory in KiB that is the process' own: pages of files, as of a mapped journal, are the kernel's cache.
    pub(crate) fn memory_kib(&self) -> u64 {
        let of = |id: u32| -> Option<u64> {
            let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.split_whitespace().next()?.parse().ok()
        };
        self.ids().into_iter().filter_map(of).sum()
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        self.ids().into_iter().filter_map(|id| Some(fs::read_dir(format!("/proc/{id}/fd")).ok()?.count())).sum()
    }
}

fn threads(id: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM lets nginx end its workers; whoever does not listen is killed.
        let running = matches!(self.child.try_wait(), Ok(None));
        let id = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).filter(|_| running);
        let asked = id.is_some_and(|id| rustix::process::kill_process(id, rustix::process::Signal::TERM).is_ok());
        let end = Instant::now() + Duration::from_secs(if asked { 3 } else { 0 });
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.child.kill().is_ok() && self.child.wait().is_err() {
            eprintln!("loadtest: {} could not be ended", self.name);
        }
    }
}
