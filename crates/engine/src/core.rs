//! An open database: what its handles share, and how it closes.

use orogen_base::sync::atomic::Ordering;
use orogen_base::sync::thread;
use std::sync::Arc;

use orogen_base::Result;

use crate::background::Background;
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::jobs::manual_flush;
use crate::obsolete;
use crate::options::FlushOptions;
use crate::resume;
use crate::write::commit::WritePath;

/// The parts of an open database.
pub(crate) struct Core {
    pub(crate) context: Arc<Context>,
    pub(crate) write: Arc<WritePath>,
    pub(crate) default_family: Arc<ColumnFamilyData>,
    pub(crate) background: Option<Background>,
}

impl Core {
    /// Closes the database; see [`crate::Db::close`].
    ///
    /// # Errors
    /// What a last flush met; the database is closed all the same.
    pub(crate) fn close(&self) -> Result<()> {
        let context = &self.context;
        if context.is_closing() {
            return Ok(());
        }
        // A listener on a background thread would wait for itself.
        let own = thread::current().id();
        let on_background_thread = context.background.lock().contains(&own);
        let flushed = if !on_background_thread
            && !context.db_options().avoid_flush_during_shutdown
            && !context.read_only
        {
            self.flush_all()
        } else {
            Ok(())
        };
        context.closing.store(true, Ordering::Release);
        context.stall.release();
        context.progress.raise();
        if let Some(background) = &self.background {
            background.join();
        }
        context.wait_for_callers();
        // A writer that passed its check before closing was set ends before this.
        self.write.exclusive(|| {
            context.set.close();
            context.logs.close();
        });
        obsolete::purge(context);
        for family in context.set.families() {
            // Who reads on does so beside the next open.
            family
                .tables
                .others_may_write
                .store(true, Ordering::Relaxed);
        }
        context.log.info(format_args!("closed"));
        context.lock.lock().take();
        flushed
    }
}

impl Core {
    /// Flushes what no log has. If the disk was full it may not be any more.
    fn flush_all(&self) -> Result<()> {
        let (context, write) = (&self.context, &self.write);
        if !context.has_unlogged() {
            return Ok(());
        }
        if context.health.out_of_space() {
            resume::resume(context, write)?;
        }
        context.check_writable()?;
        let families = context.set.families();
        manual_flush::flush(context, write, &FlushOptions { wait: true }, &families)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // An explicit close tells of errors; here nobody listens.
        let _ = self.close();
    }
}
