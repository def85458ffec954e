//! Takes writes again after the disk was full, or a flush or the MANIFEST was refused memory.
//!
//! ```text
//! probe: space for what must be flushed? -> in the write leader's place: logs and MANIFEST made
//! whole -> flushes that are due -> healthy, unless something found no space meanwhile
//! ```
//! Invariants: (1) no write is taken before the torn end of a log is cut off for good and a new
//! MANIFEST stands where a change may be half written; (2) one thread resumes at a time; (3) what
//! fails otherwise than for space or memory makes the database read-only, as it does elsewhere.

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind, Result};

use crate::context::Context;
use crate::events::ErrorRecoveryInfo;
use crate::jobs::flush;
use crate::obsolete;
use crate::shortage::Followed;
use crate::write::commit::WritePath;

/// Beside what is to be flushed so many bytes must be free.
const SLACK_BYTES: u64 = 64 << 10;

/// Another attempt follows at once where a job of before the first fails meanwhile.
const ATTEMPTS_MAX: usize = 4;

/// Tries to resume if a try is due and there is space; true if writes are taken again.
pub(crate) fn probe(context: &Context, write: &WritePath) -> bool {
    let options = &context.options;
    if context.shortage.resume.tries() >= options.max_bgerror_resume_count {
        return false;
    }
    let now = context.clock.now_micros();
    let interval = options.bgerror_resume_retry_interval;
    if !context.shortage.resume.take(now, interval) {
        return false;
    }
    let statistics = &context.statistics;
    statistics.add(Ticker::ErrorHandlerAutoresumeRetryTotalCount, 1);
    // Where it cannot be asked, or a quota says otherwise, the try itself tells.
    let free = context.fs.free_space(&context.dir);
    if free.is_ok_and(|free| free < context.sealed_bytes().saturating_add(SLACK_BYTES)) {
        return false;
    }
    // Who waited for another one's turn could not flush what a listener there waits for.
    let Ok(Some(_turn)) = context.try_resume_turn() else {
        return false;
    };
    match resume_in_turn(context, write) {
        Ok(()) => {
            statistics.add(Ticker::ErrorHandlerAutoresumeSuccessCount, 1);
            true
        }
        Err(e) => {
            context.log.info(format_args!("cannot resume yet: {e}"));
            false
        }
    }
}

/// Makes whole what a full disk left half done, and takes writes again.
///
/// # Errors
/// `NoSpace`, `NoMemory`: it is as before. `ReadOnly` if it has failed for good, now or before; `Busy` if the
/// caller is a listener that was called while this runs; `Closed`.
pub(crate) fn resume(context: &Context, write: &WritePath) -> Result<()> {
    let _turn = context.take_resume_turn()?;
    resume_in_turn(context, write)
}

fn resume_in_turn(context: &Context, write: &WritePath) -> Result<()> {
    context.health.check_failed()?;
    let Some(cause) = context.health.cause() else {
        return Ok(());
    };
    let mut tries = 0;
    loop {
        let seen = context.health.times_full();
        if let Err(e) = attempt(context, write) {
            if !e.kind().is_shortage() && e.kind() != ErrorKind::Closed {
                context.fail(&e);
            }
            return Err(e);
        }
        if context.health.clear(seen) {
            break;
        }
        // A job that began before there was space has failed meanwhile, or there is none again.
        tries += 1;
        if tries == ATTEMPTS_MAX {
            return context.health.check();
        }
    }
    let Followed::Not(ended) = context.follow_health() else {
        // Full again already.
        return context.health.check();
    };
    let now = context.clock.now_micros();
    let (since, attempts) = ended.unwrap_or((now, 0));
    let info = ErrorRecoveryInfo {
        error: cause,
        attempts,
        micros: now.saturating_sub(since),
    };
    context.log.warn(format_args!(
        "writes are taken again after {} micros and {} probes; it was: {}",
        info.micros, info.attempts, info.error
    ));
    context.notify(|l| l.on_error_recovery_completed(&info));
    context.work.raise();
    context.progress.raise();
    Ok(())
}

fn attempt(context: &Context, write: &WritePath) -> Result<()> {
    write.exclusive(|| {
        if context.is_closing() {
            return Err(Error::closed("database is closed"));
        }
        if context.logs.is_broken() {
            let next_seqno = context.sequence.allocated() + 1;
            let number = context.set.new_file_number();
            let expected = context.expected_log_bytes();
            context.logs.mend(number, next_seqno, expected)?;
            write.refresh_memtables();
        }
        context.set.mend()
    })?;
    while let Some(job) = flush::next(context) {
        job.run(context)?;
    }
    obsolete::purge(context);
    Ok(())
}
