//! A conversion of values: those in tables go to blob files, or those in blob files come back.
//!
//! ```text
//! the family's settings want it by now -> flush -> survey -> take some tables -> rewrite them where they
//! are -> one edit -> survey ... -> nothing left -> what is there is compared with what was wanted
//! ```
//! What is to be done is seen from the tables alone, so it needs no state: after a crash, a pause or a
//! failure another call goes on where this one was. Each step is a compaction of its tables within their
//! levels, without the user's filter; snapshots, tombstones and merge operands are treated as in any.
//!
//! 1. A job that began under other settings may still write what is not wanted. When the last of these has ended a
//!    number is taken: tables from that number on are what is wanted, as far as they can be, and are not looked at. Before,
//!    what this job wrote itself is not. So it ends, whatever is written meanwhile, and whatever cannot be read.
//! 2. Whoever changes the settings so that they want something else ends it.
//! 3. What cannot be converted is told of, never passed over: the answer is made of the version, not of what was done.
//! 4. A step holds tables of some seconds' work; between steps and during a pause it holds nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use orogen_base::{Error, ErrorKind, FileNo, Result};

use crate::activity::{JobInfo, JobKind, JobState, RunningJob};
use crate::column_family::ColumnFamilyData;
use crate::compact::Reason;
use crate::compact::convert::{self, Candidate, Need};
use crate::context::Context;
use crate::events::{BlobConversionInfo, Converted};
use crate::jobs::compaction_handle::{
    self, CompactionHandle, CompactionProgress, Control, Counted, StepWatch,
};
use crate::jobs::in_place::{self, Next, Part, Steps, Taken};
use crate::jobs::manual_flush;
use crate::obsolete;
use crate::options::{BlobRunMode, ColumnFamilyOptions, ConvertTo, FlushOptions};
use crate::quarantine;
use crate::version::FileMeta;
use crate::version::version::Version;
use crate::write::commit::WritePath;

/// A step takes no more tables once it reads as many bytes as so many tables have.
const TABLES_PER_STEP: u64 = 4;

/// What is asked for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) family: Arc<ColumnFamilyData>,
    pub(crate) to: ConvertTo,
}

/// What a conversion counts, for its handle.
#[derive(Default)]
pub(crate) struct Counts {
    tables_done: AtomicU64,
    tables_ahead: AtomicU64,
    begun_micros: AtomicU64,
    converted: Mutex<Converted>,
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConversionProgress {
    /// Tables that were rewritten.
    pub tables_done: u64,
    /// The same at the end, as far as it is known now.
    pub tables_total: u64,
    /// Bytes of tables, and of values behind their pointers, that were read.
    pub bytes_done: u64,
    /// The same at the end, as far as it is known now.
    pub bytes_total: u64,
    /// About how long the rest takes if it goes on as so far, in microseconds; `None` before the first
    /// bytes.
    pub micros_left: Option<u64>,
    /// It was told to pause.
    pub paused: bool,
    /// It has ended, well or not.
    pub finished: bool,
}

/// A conversion that runs on a thread of its own, from
/// [`Db::convert_values_async`](crate::Db::convert_values_async).
///
/// Dropping it lets the conversion go on. Closing the database cancels it; another call goes on where
/// it was.
#[derive(Clone)]
pub struct ConversionHandle {
    job: CompactionHandle,
    counts: Arc<Counts>,
}

impl ConversionHandle {
    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> ConversionProgress {
        let CompactionProgress {
            bytes_done,
            bytes_total,
            paused,
            finished,
        } = self.job.progress();
        let tables_done = self.counts.tables_done.load(Relaxed);
        let now = self.job.context.clock.now_micros();
        let elapsed = now.saturating_sub(self.counts.begun_micros.load(Relaxed));
        let left = u128::from(elapsed) * u128::from(bytes_total - bytes_done);
        let left = left.checked_div(u128::from(bytes_done));
        ConversionProgress {
            tables_done,
            tables_total: tables_done + self.counts.tables_ahead.load(Relaxed),
            bytes_done,
            bytes_total,
            micros_left: left.map(|micros| u64::try_from(micros).unwrap_or(u64::MAX)),
            paused,
            finished,
        }
    }

    /// The part of it that it has in common with other jobs: pause, resume, cancel.
    #[must_use]
    pub fn job(&self) -> &CompactionHandle {
        &self.job
    }

    /// Waits for its end. One that is paused does not end before it is told to go on, is
    /// cancelled, or the database closes.
    ///
    /// # Errors
    /// As [`Db::convert_values`](crate::Db::convert_values).
    pub fn wait(&self) -> Result<Converted> {
        self.job.wait()?;
        Ok(self.counts.converted.lock().clone())
    }
}

impl std::fmt::Debug for ConversionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.progress().fmt(f)
    }
}

/// Converts the values of a family, on the caller's thread. The family's settings want it already.
///
/// # Errors
/// `ReadOnly`, `Closed`, `Aborted`, or what a flush or a step met; steps done so far stay.
pub(crate) fn convert(
    context: &Context,
    write: &WritePath,
    request: &Request,
    control: &Arc<Control>,
    counts: &Counts,
) -> Result<Converted> {
    let _job = context.enter_job()?;
    counts
        .begun_micros
        .store(context.clock.now_micros(), Relaxed);
    let mut conversion = Conversion {
        context,
        family: &request.family,
        to: request.to,
        control,
        counts,
        id: context.new_job_id(),
        learned: HashMap::new(),
        passed: HashSet::new(),
        older: HashSet::new(),
        made_before: None,
        converted: Converted::default(),
    };
    let mut listed = RunningJob::new(conversion.info(), 0);
    let told = control.clone();
    listed.progress = Some(Box::new(move || told.progress()));
    let listed = context.activity.list(conversion.id, listed);
    let result = conversion.run_and_tell(write);
    drop(listed);
    obsolete::purge(context);
    result.inspect_err(|e| compaction_handle::note_failure(context, e))
}

/// The same on a thread of its own, which ends before the database is closed.
///
/// # Errors
/// `Io` if the system has no thread left.
pub(crate) fn spawn(
    context: &Arc<Context>,
    write: &Arc<WritePath>,
    request: Request,
) -> Result<ConversionHandle> {
    let counts = Arc::new(Counts::default());
    let (theirs, write, told) = (context.clone(), write.clone(), counts.clone());
    let job = compaction_handle::spawn(context, "orogen-convert", move |control| {
        let converted = convert(&theirs, &write, &request, control, &told)?;
        *told.converted.lock() = converted;
        Ok(())
    })?;
    Ok(ConversionHandle { job, counts })
}

struct Conversion<'a> {
    context: &'a Context,
    family: &'a Arc<ColumnFamilyData>,
    to: ConvertTo,
    control: &'a Arc<Control>,
    counts: &'a Counts,
    id: u64,
    /// What values have fewer bytes than in tables that do not tell, and were read.
    learned: HashMap<FileNo, u64>,
    /// Tables that this job wrote, and those that cannot be rewritten because they, or others that share
    /// user keys with them, are damaged.
    passed: HashSet<FileNo>,
    /// Jobs that may write what is not wanted, as far as they run still.
    older: HashSet<u64>,
    /// From this number on tables are what is wanted.
    made_before: Option<FileNo>,
    converted: Converted,
}

impl Steps for Conversion<'_> {
    fn check(&self) -> Result<()> {
        self.control.check(self.context, self.family)?;
        match wants(&self.family.options(), self.to) {
            true => Ok(()),
            false => Err(
                Error::aborted("settings want values to be elsewhere by now")
                    .with("column_family", &self.family.name),
            ),
        }
    }

    fn next(&mut self, version: &Arc<Version>) -> Result<Next> {
        if self.made_before.is_none() {
            let state = self.family.state();
            self.older
                .retain(|id| state.running.iter().any(|r| r.0 == *id));
            if self.older.is_empty() {
                self.made_before = Some(self.context.set.new_file_number());
                // The version may be from before their end.
                return Ok(Next::Again);
            }
        }
        let bound = self.made_before.unwrap_or(FileNo::MAX);
        match self.pick(version, bound)? {
            Picked::Step(step, bytes) => self.step(step, bytes).map(|()| Next::Again),
            Picked::Nothing if self.made_before.is_some() => {
                self.judge(version).map(|()| Next::Done)
            }
            Picked::Again => Ok(Next::Again),
            Picked::Nothing | Picked::Busy => Ok(Next::Wait),
        }
    }
}

impl Conversion<'_> {
    fn info(&self) -> JobInfo {
        JobInfo {
            id: Some(self.id),
            kind: JobKind::BlobConversion,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: None,
            output_level: None,
            input_files: Vec::new(),
            input_bytes: 0,
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: self.to.name().to_owned(),
            since_secs: Some(self.context.clock.unix_secs()),
        }
    }

    fn run_and_tell(&mut self, write: &WritePath) -> Result<Converted> {
        let start = self.context.clock.now_micros();
        let told = |micros: u64, converted: &Converted| BlobConversionInfo {
            column_family: self.family.name.clone(),
            job_id: self.id,
            to: self.to.name(),
            converted: converted.clone(),
            error: None,
            micros,
        };
        let (context, to) = (self.context, self.to.name());
        let (name, id) = (self.family.name.clone(), self.id);
        context.log.info(format_args!(
            "[{name}] blob conversion job={id} to={to} begins"
        ));
        let begun = told(0, &Converted::default());
        context.notify(|l| l.on_blob_conversion_begin(&begun));
        let result = self.run(write);
        let micros = context.clock.now_micros().saturating_sub(start);
        let converted = &self.converted;
        let mut ended = BlobConversionInfo {
            converted: converted.clone(),
            micros,
            ..begun
        };
        if let Err(e) = result {
            context.log.info(format_args!(
                "[{name}] blob conversion job={id} to={to} ends before its time, tables={} micros={micros}: {e}",
                converted.tables_rewritten,
            ));
            ended.error = Some(e.clone());
            context.notify(|l| l.on_blob_conversion_completed(&ended));
            return Err(e);
        }
        context.log.info(format_args!(
            "[{name}] blob conversion job={id} to={to} tables={} table_bytes_read={} bytes_written={} \
             tables_left={:?} blob_files_left={:?} micros={micros}",
            converted.tables_rewritten,
            converted.table_bytes_read,
            converted.bytes_written,
            converted.tables_left,
            converted.blob_files_left,
        ));
        context.notify(|l| l.on_blob_conversion_completed(&ended));
        Ok(ended.converted)
    }

    fn run(&mut self, write: &WritePath) -> Result<()> {
        self.check()?;
        let families = std::slice::from_ref(self.family);
        manual_flush::flush(self.context, write, &FlushOptions { wait: true }, families)?;
        // They may have been given the settings of before.
        self.older = self.family.state().running.iter().map(|r| r.0).collect();
        in_place::run_all(self.context, self.family, self.control, self)
    }

    /// What a table needs, as far as that is known.
    fn need(&self, level: usize, file: &FileMeta) -> Result<Need> {
        let tables = &self.family.tables;
        match self.to {
            ConvertTo::Inline => {
                if file.oldest_blob_file_number == 0 {
                    return Ok(Need::Nothing);
                }
                // A table of RocksDB does not tell how much it is.
                let told = tables.told_blob_references(file)?.unwrap_or_default();
                let values = told.iter().map(|(_, count)| count.bytes);
                let values = values.fold(0, u64::saturating_add);
                Ok(Need::Rewrite(file.size.saturating_add(values)))
            }
            ConvertTo::Separated => {
                let Some(min) = self.family.options().separates_from(level) else {
                    return Ok(Need::Nothing);
                };
                let bound = match self.learned.get(&file.number) {
                    Some(&learned) => Some(learned),
                    None => tables.told_inline_value_size_bound(file)?,
                };
                Ok(match bound {
                    None => Need::Look(file.size),
                    Some(bound) if bound > min => Need::Rewrite(file.size),
                    Some(_) => Need::Nothing,
                })
            }
        }
    }

    /// Takes the next step, if `version` is still the newest.
    fn pick(&mut self, version: &Arc<Version>, made_before: FileNo) -> Result<Picked> {
        let mut damaged = Vec::new();
        let mut need = |level, file: &FileMeta| match self.need(level, file) {
            Err(e) if e.kind() == ErrorKind::Corruption => {
                damaged.push((file.number, e));
                Ok(Need::Nothing)
            }
            other => other,
        };
        let survey = convert::survey(version, made_before, &self.passed, &mut need)?;
        for (number, e) in damaged {
            self.pass(number, &e);
        }
        self.counts.tables_ahead.store(survey.tables, Relaxed);
        self.control.set_ahead(survey.bytes);
        let Some(tables) = self.choose(&survey.idle)? else {
            return Ok(Picked::Again);
        };
        if tables.is_empty() {
            return Ok(match survey.is_busy {
                true => Picked::Busy,
                false => Picked::Nothing,
            });
        }
        let reason = Reason::BlobConversion;
        let of_step: Vec<_> = tables.iter().map(|c| (c.level, c.file.clone())).collect();
        let (context, family) = (self.context, self.family);
        let taken = in_place::take(context, family, version, &of_step, reason, &|_| false);
        let parts = match taken {
            Taken::Parts(parts) => parts,
            Taken::Busy => return Ok(Picked::Busy),
            Taken::Stale => return Ok(Picked::Again),
            Taken::Nothing => {
                self.passed.extend(tables.iter().map(|c| c.file.number));
                return Ok(Picked::Again);
            }
        };
        let unfiltered = |part: Part| Part {
            job: part.job.without_filter(),
            ..part
        };
        let step = in_place::Step {
            parts: parts.into_iter().map(unfiltered).collect(),
            emptied: HashSet::new(),
            ordered_to: None,
            reason,
        };
        let taken: HashSet<FileNo> = step.inputs().map(|(_, f)| f.number).collect();
        let surveyed = tables.iter().filter(|c| taken.contains(&c.file.number));
        let bytes = surveyed.map(Candidate::bytes).sum();
        Ok(Picked::Step(step, bytes))
    }

    /// The tables of a step: as many as make some seconds' work, and one alone of level 0. Those
    /// of which it is not known are read first. `None` if another look is needed.
    fn choose(&mut self, idle: &[Candidate]) -> Result<Option<Vec<Candidate>>> {
        let options = self.family.options();
        let enough = options
            .target_file_size_base
            .saturating_mul(TABLES_PER_STEP)
            .min(options.max_compaction_bytes());
        let mut chosen: Vec<Candidate> = Vec::new();
        let mut bytes = 0u64;
        for candidate in idle {
            let is_alone = candidate.level == 0 && !chosen.is_empty();
            if is_alone || (bytes >= enough && !chosen.is_empty()) {
                break;
            }
            if matches!(candidate.need, Need::Look(_)) {
                if !chosen.is_empty() {
                    // What is known is done first.
                    break;
                }
                self.learn(&candidate.file)?;
                return Ok(None);
            }
            bytes = bytes.saturating_add(candidate.bytes());
            chosen.push(candidate.clone());
            if candidate.level == 0 {
                break;
            }
        }
        Ok(Some(chosen))
    }

    /// Reads a table to know how large its values are.
    fn learn(&mut self, file: &Arc<FileMeta>) -> Result<()> {
        let tables = self.family.tables.clone();
        let mut look = || match self.control.is_paused() || self.context.is_closing() {
            true => Err(Error::aborted("job was stopped")),
            false => self.check(),
        };
        match tables.find_inline_value_size_bound(file, &mut look) {
            Ok(bound) => {
                self.learned.insert(file.number, bound);
            }
            Err(e) if e.kind() == ErrorKind::Corruption => self.pass(file.number, &e),
            // For a pause; it begins anew.
            Err(e) if e.kind() == ErrorKind::Aborted => self.check()?,
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Leaves a damaged table out.
    fn pass(&mut self, number: FileNo, error: &Error) {
        quarantine::note(self.context, error);
        self.passed.insert(number);
    }

    /// Does a step, for which so many bytes are read.
    fn step(&mut self, step: in_place::Step, bytes: u64) -> Result<()> {
        let _running = Counted::new(self.context, self.family, |s| &mut s.manual_running);
        // Its tables are free before that tells others to look.
        let step = step;
        let table_bytes = step.table_bytes();
        let numbers: Vec<FileNo> = step.inputs().map(|(_, f)| f.number).collect();
        // They may be of several levels.
        let lowest = step.inputs().map(|(level, _)| level).min();
        let level = lowest.filter(|&l| step.inputs().all(|(level, _)| level == l));
        let mut entries = 0;
        for (_, file) in step.inputs() {
            entries += match self.family.tables.reader(file) {
                Ok(table) => table.properties().num_entries,
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    self.pass(file.number, &e);
                    return Ok(());
                }
                Err(e) => return Err(e),
            };
        }
        let id = self.context.new_job_id();
        let begun = JobInfo {
            id: Some(id),
            kind: JobKind::Compaction,
            start_level: level,
            output_level: level,
            input_files: numbers.clone(),
            input_bytes: bytes,
            reason: step.reason.name().to_owned(),
            ..self.info()
        };
        let watch = Arc::new(StepWatch::new(self.context, self.control, bytes, entries));
        match step.run(
            self.context,
            self.family,
            (id, begun),
            entries,
            Some(&watch),
        ) {
            Ok(rewritten) => {
                let count = numbers.len() as u64;
                self.counts.tables_done.fetch_add(count, Relaxed);
                self.converted.tables_rewritten += count;
                self.converted.table_bytes_read += table_bytes;
                self.converted.bytes_written += rewritten.bytes_written;
                self.passed.extend(&rewritten.tables);
                obsolete::purge(self.context);
                Ok(())
            }
            // For a pause, or because it is to end: looked at before the next step.
            Err(e) if e.kind() == ErrorKind::Aborted => self.check(),
            // The damaged one is left alone from here on, the others are done.
            Err(e) if e.kind() == ErrorKind::Corruption && quarantine::note(self.context, &e) => {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Compares what there is with what was wanted.
    fn judge(&mut self, version: &Version) -> Result<()> {
        // Values that were written later, above the level from which on they go to blob files, may have come below it in
        // tables that moved as they were: there they stay until a compaction comes by.
        let moves_count =
            self.to == ConvertTo::Inline || self.family.options().blob_file_starting_level == 0;
        let bound = self.made_before.filter(|_| !moves_count);
        let mut left: Vec<FileNo> = Vec::new();
        for (level, file) in version.iter_files() {
            if bound.is_some_and(|bound| file.number >= bound) {
                continue;
            }
            match self.need(level, file) {
                Ok(Need::Nothing) => {}
                Ok(_) => left.push(file.number),
                Err(e) if e.kind() == ErrorKind::Corruption => left.push(file.number),
                Err(e) => return Err(e),
            }
        }
        // What was looked at was wanted to the end.
        self.check()?;
        left.sort_unstable();
        self.converted.tables_left = left;
        if self.to == ConvertTo::Inline {
            self.converted.blob_files_left = version.blob_files().keys().copied().collect();
        }
        Ok(())
    }
}

/// What a conversion found to do.
enum Picked {
    Nothing,
    Busy,
    /// What was looked at has changed, or more is known by now.
    Again,
    /// A step, and the bytes that are read for it.
    Step(in_place::Step, u64),
}

/// True if jobs that begin now write values as a conversion wants them.
fn wants(options: &ColumnFamilyOptions, to: ConvertTo) -> bool {
    match to {
        ConvertTo::Inline => options.blob_run_mode == BlobRunMode::Fallback,
        ConvertTo::Separated => options.separates_values(),
    }
}
