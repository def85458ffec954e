//! Where output goes: data to stdout, talk and progress to stderr.

use std::io::{BufWriter, IsTerminal, Stdout, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use orogen::CompactionHandle;
use orogen_env::{Clock as _, SystemClock};
use serde_json::Value;

/// Between two looks at how far a job is.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);

/// Both streams and how they are used.
pub(crate) struct Terminal {
    out: BufWriter<Stdout>,
    /// Data is JSON.
    pub(crate) json: bool,
    /// Keys and values are hexadecimal.
    pub(crate) hex: bool,
    /// Data may be coloured.
    pub(crate) color: bool,
    /// Data may have characters beyond ASCII.
    pub(crate) unicode: bool,
    /// The person gives up what stands behind damage in logs.
    pub(crate) drop_log_damage: bool,
    progress: bool,
    items: usize,
    /// What ends the array that was begun, and its document.
    ends: Option<&'static str>,
}

/// What stands out, and how.
#[derive(Clone, Copy)]
pub(crate) enum Ink {
    Bold,
    Faint,
    Accent,
    Good,
    Bad,
}

impl Terminal {
    pub(crate) fn new(json: bool, hex: bool, no_progress: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        // Without any locale variable it is the C locale, which has no characters beyond ASCII;
        // a pipe is read by programs of this century.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|n| std::env::var(n).ok());
        let ascii_locale = locale.is_some_and(|l| l == "C" || l == "POSIX");
        Self {
            out: BufWriter::new(std::io::stdout()),
            json,
            hex,
            color: std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb,
            unicode: !ascii_locale && !dumb,
            drop_log_damage: false,
            progress: std::io::stderr().is_terminal() && !no_progress && !set("NO_COLOR") && !dumb,
            items: 0,
            ends: None,
        }
    }

    /// Prints a line of data.
    pub(crate) fn line(&mut self, text: &str) -> std::io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")
    }

    /// Prints what was there before a job and after it.
    pub(crate) fn change(&mut self, before: &str, after: &str, micros: u64) -> std::io::Result<()> {
        self.line(&format!("before: {before}"))?;
        let took = crate::text::duration(micros);
        self.line(&format!("after:  {after} in {took}"))
    }

    /// Prints bytes of data as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Prints one JSON document.
    pub(crate) fn document(&mut self, value: &Value) -> std::io::Result<()> {
        writeln!(self.out, "{value:#}")
    }

    /// Begins a JSON array, which may be long; `open` is what stands before its items, `ends` what ends array and document where an
    /// error keeps the rest away.
    pub(crate) fn begin_items(&mut self, open: &str, ends: &'static str) -> std::io::Result<()> {
        self.items = 0;
        self.ends = Some(ends);
        self.out.write_all(open.as_bytes())
    }

    /// Prints an item of the array.
    pub(crate) fn item(&mut self, value: &Value) -> std::io::Result<()> {
        let before = if self.items == 0 { "\n" } else { ",\n" };
        self.items += 1;
        write!(self.out, "{before}{value}")
    }

    /// Ends the array; `close` is what stands after its items.
    pub(crate) fn end_items(&mut self, close: &str) -> std::io::Result<()> {
        self.ends = None;
        write!(self.out, "\n{close}")
    }

    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }

    /// Ends what an error has left open, so that what was printed is a JSON document.
    pub(crate) fn close_items(&mut self) -> std::io::Result<()> {
        match self.ends.take() {
            Some(ends) => self.end_items(ends),
            None => Ok(()),
        }
    }

    /// Both streams, for those that write for themselves.
    pub(crate) fn out(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    /// Tells the person something. If stderr is gone there is nobody to tell.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// A bar of `total` steps or bytes; invisible where nobody would see it move.
    pub(crate) fn bar(&self, total: u64, bytes: bool, message: &str) -> ProgressBar {
        let template = if bytes {
            "{msg:24} [{bar:30}] {bytes}/{total_bytes} {eta}"
        } else {
            "{msg:24} [{bar:30}] {pos}/{len} {eta}"
        };
        let bar = ProgressBar::with_draw_target(Some(total), self.target());
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("#> ");
        bar.set_style(style);
        bar.set_message(message.to_owned());
        bar
    }

    /// Shows how far a job is until it ends, and gives what it met.
    pub(crate) fn follow(&self, handle: &CompactionHandle, message: &str) -> orogen::Result<()> {
        let bar = self.bar(0, true, message);
        loop {
            let progress = handle.progress();
            if progress.finished {
                break;
            }
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
            SystemClock.sleep(LOOK_EVERY);
        }
        bar.finish_and_clear();
        handle.wait()
    }

    /// A sign of life for work of unknown length.
    pub(crate) fn spinner(&self, message: &str) -> ProgressBar {
        let spinner = ProgressBar::with_draw_target(None, self.target());
        spinner.set_style(ProgressStyle::default_spinner().tick_chars("|/-\\ "));
        spinner.set_message(message.to_owned());
        if self.progress {
            spinner.enable_steady_tick(std::time::Duration::from_millis(120));
        }
        spinner
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.progress {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        }
    }

    /// `text` in a colour, where there are colours.
    pub(crate) fn ink(&self, ink: Ink, text: &str) -> String {
        if !self.color {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Bold => "1",
            Ink::Faint => "2",
            Ink::Accent => "36",
            Ink::Good => "32",
            Ink::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A key or a value for people, in one line: hexadecimal if that was asked for.
    pub(crate) fn show(&self, bytes: &[u8]) -> String {
        if self.hex {
            crate::text::hex(bytes)
        } else {
            crate::text::escape(bytes)
        }
    }

    /// A key or a value as it stands in an argument.
    pub(crate) fn bytes(&self, arg: &std::ffi::OsStr) -> Result<Vec<u8>, crate::Failure> {
        use std::os::unix::ffi::OsStrExt as _;
        if !self.hex {
            return Ok(arg.as_bytes().to_vec());
        }
        crate::text::unhex(arg.as_bytes()).ok_or_else(|| {
            let arg = arg.to_string_lossy();
            crate::Failure::Usage(format!(
                "'{arg}' is not an even number of hexadecimal digits"
            ))
        })
    }
}
