//! Telling many tasks something at once. They live on several single-threaded runtimes, and to wake one of another runtime's tasks costs
//! a system call, each: so each runtime is woken once, and wakes its own.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What a task waits for.
pub(super) type Waits<T> = oneshot::Receiver<T>;

/// Whom to tell.
#[derive(Debug)]
pub(super) struct Told<T> {
    to: oneshot::Sender<T>,
    /// Where the one who waits lives.
    runtime: Option<Handle>,
}

/// Somebody to be told, and what he waits for. To be made where he waits.
pub(super) fn told<T>() -> (Told<T>, Waits<T>) {
    let (to, waits) = oneshot::channel();
    (Told { to, runtime: Handle::try_current().ok() }, waits)
}

impl<T> Told<T> {
    /// Whether nobody waits any more.
    pub(super) fn has_gone(&self) -> bool {
        self.to.is_closed()
    }

    fn tell(self, what: T) {
        // Whoever has given up does not hear it.
        drop(self.to.send(what));
    }
}

/// Those who live on one runtime, and what each is told.
struct Away<T> {
    runtime: Handle,
    all: Vec<(Told<T>, T)>,
}

/// Tells each what is his; those of one runtime in the order in which they stand here.
pub(super) fn tell_all<T: Send + 'static>(all: impl Iterator<Item = (Told<T>, T)>) {
    let here = Handle::try_current().ok().map(|runtime| runtime.id());
    let mut groups: Vec<Away<T>> = Vec::new();
    for (mut told, what) in all {
        let Some(runtime) = told.runtime.take().filter(|runtime| Some(runtime.id()) != here) else {
            told.tell(what);
            continue;
        };
        match groups.iter_mut().find(|group| group.runtime.id() == runtime.id()) {
            Some(group) => group.all.push((told, what)),
            None => groups.push(Away { runtime, all: vec![(told, what)] }),
        }
    }
    for Away { runtime, all } in groups {
        // A runtime that has stopped drops the task, and whoever waits hears that nobody will tell him.
        drop(runtime.spawn(async move { all.into_iter().for_each(|(told, what)| told.tell(what)) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_is_told_wherever_he_lives() {
        let (stop, stopped) = oneshot::channel::<()>();
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let handle = runtime.handle().clone();
            let pairs: Vec<_> = runtime.block_on(async { (0..3).map(|_| told::<u8>()).collect() });
            (handle, pairs, std::thread::spawn(move || runtime.block_on(stopped)))
        });
        let (_handle, away, thread) = other.join().unwrap();
        let here: Vec<_> = (0..2).map(|_| told()).collect();
        let (all, waits): (Vec<_>, Vec<_>) = away.into_iter().chain(here).unzip();
        tell_all(all.into_iter().zip(1..));
        let mut heard = Vec::new();
        for waits in waits {
            heard.push(waits.await.unwrap());
        }
        assert_eq!(heard, [1, 2, 3, 4, 5]);
        stop.send(()).unwrap();
        thread.join().unwrap().unwrap();
        // That runtime has stopped: whoever waits there, or as if there, is not left waiting.
        let gone = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { told::<u8>() })
        });
        let (told, waits) = gone.join().unwrap();
        tell_all(std::iter::once((told, 9)));
        assert!(waits.await.is_err());
    }
}
