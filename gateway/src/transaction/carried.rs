//! A future that runs where it is waited for, and to its end also when nobody waits any more.
//!
//! A task of its own from the beginning would do too, and cost each transaction an allocation, two moves of its state and two turns
//! of the scheduler more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// It panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Panicked;

/// The future. Dropped before its end it goes on as a task; where there is no runtime any more it is dropped too, and its own guards
/// end it.
pub(super) struct Carried<T: Send + 'static> {
    // Gone when it has ended.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: TaskTracker,
}

impl<T: Send + 'static> Carried<T> {
    pub(super) fn new(tasks: TaskTracker, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), tasks }
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Ready(Err(Panicked)) };
        // What it leaves behind is looked at by nobody but its own guards, which have run by then.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        let ended = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(_panic) => Err(Panicked),
        };
        self.future = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let (Some(future), Ok(runtime)) = (self.future.take(), Handle::try_current()) {
            self.tasks.spawn_on(future, &runtime);
        }
    }
}
