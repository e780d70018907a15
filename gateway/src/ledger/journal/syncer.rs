//! The journal's own thread: syncs what has gathered, and keeps a spare segment ready. In a simulation it is a task.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Journal;
use super::format::PAGE;
use super::writer::Segment;
use crate::left_out::{Part, is_left_out};

/// How often a spare segment is tried for while there is none.
const SPARE_RETRY: Duration = Duration::from_millis(250);

/// Nobody syncs any more when the thread panics.
struct FailsInPanic(Arc<Journal>);

impl Drop for FailsInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}

impl Journal {
    /// Syncs what has gathered whenever there is something; ends when the journal has failed. Should the thread or the task die that
    /// does it, the journal has failed: nobody would ever hear of a sync again.
    pub async fn run_syncer(self: Arc<Self>) {
        if self.disk.returns_at_once() {
            let syncing = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&self).sync_for_ever()));
            if syncing.await.is_err_and(|error| error.is_panic()) {
                self.fail();
            }
            return;
        }
        // When this is dropped, the thread ends, behind the sync that it is at.
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let ended = self.syncer.get_or_init(CancellationToken::new).clone();
        let journal = Arc::clone(&self);
        let started = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            let _ended = ended.drop_guard();
            journal.sync_here(&stop);
        });
        if let Err(error) = started {
            tracing::error!(kind = ?error.kind(), "no thread to sync the journal");
            self.fail();
        }
        self.failed.cancelled().await;
    }

    /// Syncs on this thread, which has nothing else to do: nobody has to be woken to do it and to say that it is done.
    fn sync_here(self: Arc<Self>, stop: &CancellationToken) {
        let _fails = FailsInPanic(Arc::clone(&self));
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
            return self.fail();
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.sync_for_ever() => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn sync_for_ever(self: Arc<Self>) {
        loop {
            self.keep_spare();
            let has_spare = self.writer().spare.is_some();
            tokio::select! {
                biased;
                () = self.dirty.notified() => {}
                () = self.failed.cancelled() => return,
                // Without a spare there may be no room, then nothing is written, and nobody would ring: look again.
                () = tokio::time::sleep(SPARE_RETRY), if !has_spare => continue,
            }
            tokio::select! {
                biased;
                () = self.demand.notified() => {}
                () = tokio::time::sleep(self.settings.sync_interval) => {}
            }
            self.sync_once();
        }
    }

    /// Syncs what was written so far, in its turn.
    fn sync_once(&self) {
        let (file, target) = {
            let mut writer = self.writer();
            let target = writer.end();
            writer.begin_sync();
            let Some(segment) = writer.segments.back() else { return };
            (Arc::clone(&segment.file), target)
        };
        let synced = if is_left_out(Part::Sync) { Ok(()) } else { file.sync() };
        let mut writer = self.writer();
        if writer.end().segment != target.segment {
            // A switch came between: all of it was written again, and the next sync covers it.
            drop(writer);
            self.demand.notify_one();
            self.dirty.notify_one();
            return;
        }
        if synced.is_ok() {
            writer.finish_sync(target);
            // Under the lock, so that nobody finds everything synced and the mark still behind.
            self.synced.advance(target);
            drop(writer);
        } else {
            // A failed sync is never asked again on that file: it would say yes about pages that are gone.
            tracing::error!("a journal sync failed; going on in a new segment");
            if self.switch_segment(&mut writer).is_ok() {
                drop(writer);
                self.demand.notify_one();
                self.dirty.notify_one();
            }
        }
    }

    /// Keeps one segment ready, as long as the limit allows.
    fn keep_spare(&self) {
        let size = self.settings.segment_size();
        let (left, number) = {
            let mut writer = self.writer();
            let count = u64::try_from(writer.segments.len()).unwrap_or(u64::MAX);
            let wanted = writer.spare.is_none() && (count + 1).saturating_mul(size) <= self.settings.limit;
            (std::mem::take(&mut writer.left), wanted.then(|| writer.take_number()))
        };
        // Not under the lock: taking many pages out of the process takes a while.
        left.iter().for_each(|file| file.leave());
        let Some(number) = number else { return };
        match self.disk.create(number, size) {
            Ok(file) => {
                let mut writer = self.writer();
                if number > writer.end().segment {
                    writer.spare = Some(Segment { number, file, end: PAGE });
                } else {
                    // A switch could not wait and made a later one: this one would be out of order.
                    drop(writer);
                    drop(self.disk.remove(number));
                }
            }
            Err(error) => tracing::warn!(kind = ?error.kind(), "no room for a spare journal segment"),
        }
    }
}
