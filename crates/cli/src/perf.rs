//! `--perf`: what the reads of a command cost.

use orogen::{PerfContext, PerfLevel};
use serde_json::{Map, Value};

use crate::terminal::Terminal;

/// Whether the reads are measured.
#[derive(clap::Args)]
pub(crate) struct Perf {
    /// Tell on stderr what the reads cost: blocks, bytes, filters, nanoseconds. With --json it is
    /// part of the document.
    #[arg(long)]
    perf: bool,
}

impl Perf {
    pub(crate) fn is_asked(&self) -> bool {
        self.perf
    }

    /// Runs `body`; tells what it cost if that was asked for.
    pub(crate) fn measure<R>(&self, body: impl FnOnce() -> R) -> (R, Option<PerfContext>) {
        if !self.perf {
            return (body(), None);
        }
        let (result, counted) = PerfContext::measure(PerfLevel::EnableTime, body);
        (result, Some(counted))
    }
}

/// The counters that are not zero, as a JSON object.
pub(crate) fn as_json(counted: &PerfContext) -> Value {
    let named = counted.iter().map(|(counter, level, n)| {
        let name = match level {
            Some(level) => format!("{}@level{level}", counter.name()),
            None => counter.name().to_owned(),
        };
        (name, Value::from(n))
    });
    Value::Object(named.collect::<Map<_, _>>())
}

/// Tells the person, if there is something to tell.
pub(crate) fn tell(terminal: &Terminal, counted: Option<&PerfContext>) {
    if let Some(counted) = counted {
        terminal.note(&counted.to_string());
    }
}
