//! A single-threaded runtime for each core. A connection lives on one of them, and with it every call that comes over it: what a
//! call wakes is on its own thread, so no other core has to be woken for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// How often a core wakes by itself, below any usual deadline. A timer that is due before all others makes a runtime wake itself, a
/// write and a turn for nothing; without a tick the deadline of each call on an idle core is such a one.
const TICK: Duration = Duration::from_millis(500);

/// The runtimes. When dropped they stop, and what still runs on them with them.
#[derive(Debug)]
pub struct Cores {
    cores: Vec<Core>,
    /// Cancelled when a core's thread has ended, whatever ended it.
    lost: CancellationToken,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Core {
    runtime: Handle,
    /// Connections that live here.
    held: Arc<AtomicUsize>,
}

/// A connection's place on a core.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Cores {
    /// One for each core that this process may use.
    ///
    /// # Errors
    /// Those of the system, when it gives no thread or no descriptor.
    pub fn start() -> io::Result<Self> {
        let (stop, lost) = (CancellationToken::new(), CancellationToken::new());
        // From here on those that were started stop again when a later one can't be.
        let guard = stop.clone().drop_guard();
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |number| Core::start(number, stop.clone(), lost.clone());
        let cores = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { cores, lost, _stop: guard })
    }

    /// Cancelled when a core is lost: its connections are gone, and new ones would be given to it for ever. Stop the process.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Runs a connection's task on the core that has the fewest.
    pub(super) fn spawn(&self, tasks: &TaskTracker, task: impl Future<Output = ()> + Send + 'static) {
        let fewest = self.cores.iter().min_by_key(|core| core.held.load(Ordering::Relaxed));
        let Some(Core { runtime, held }) = fewest else { return };
        held.fetch_add(1, Ordering::Relaxed);
        let held = Held(Arc::clone(held));
        let task = async move {
            task.await;
            drop(held);
        };
        tasks.spawn_on(task, runtime);
    }
}

impl Core {
    fn start(number: usize, stop: CancellationToken, lost: CancellationToken) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let run = move || {
            let _lost = lost.drop_guard();
            runtime.block_on(async { while tokio::time::timeout(TICK, stop.cancelled()).await.is_err() {} });
        };
        std::thread::Builder::new().name(format!("core-{number}")).spawn(run)?;
        Ok(Self { runtime: handle, held: Arc::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_go_to_the_core_that_has_the_fewest_and_a_core_that_ends_is_told() {
        let (cores, tasks, until) = (Cores::start().unwrap(), TaskTracker::new(), CancellationToken::new());
        let count = cores.cores.len();
        for _ in 0..3 * count {
            cores.spawn(&tasks, until.clone().cancelled_owned());
        }
        assert!(cores.cores.iter().all(|core| core.held.load(Ordering::Relaxed) == 3));
        until.cancel();
        tasks.close();
        tasks.wait().await;
        assert!(cores.cores.iter().all(|core| core.held.load(Ordering::Relaxed) == 0));
        assert!(!cores.lost().is_cancelled());
        let (lost, stop) = (cores.lost().clone(), cores._stop);
        stop.disarm().cancel();
        lost.cancelled().await;
    }

    /// Writes that this thread has asked the kernel for (`proc_pid_io(5)`): a runtime wakes itself by one.
    fn writes() -> u64 {
        let told = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        told.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn the_deadline_of_a_call_does_not_wake_the_core_that_sets_it() {
        let (cores, tasks) = (Cores::start().unwrap(), TaskTracker::new());
        let (tell, told) = tokio::sync::oneshot::channel();
        cores.spawn(&tasks, async move {
            let mut fewest = u64::MAX;
            // The least of three: once a tick may be due in the same turn.
            for _ in 0..3 {
                // So that it has waited, with its tick among the timers that it waits for.
                tokio::time::sleep(Duration::from_millis(1)).await;
                let before = writes();
                for _ in 0..100 {
                    let answer = std::future::pending::<()>();
                    let mut call = std::pin::pin!(tokio::time::timeout(Duration::from_secs(3), answer));
                    std::future::poll_fn(|context| {
                        assert!(call.as_mut().poll(context).is_pending());
                        std::task::Poll::Ready(())
                    })
                    .await;
                }
                fewest = fewest.min(writes() - before);
            }
            tell.send(fewest).unwrap();
        });
        assert_eq!(told.await.unwrap(), 0, "of a hundred deadlines");
    }
}
