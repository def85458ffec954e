//! Why a command failed, and the exit code that says so.

use orogen::{Error, ErrorKind};

/// The exit codes, as every `--help` ends with them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed
  2  the command line is wrong
  3  there is no such key, file, column family, database or Raft log
  4  damaged data
  5  another process has the database open, or has changed it meanwhile
  6  no space left
  7  the database or its file system takes no writes
  8  the format or feature is not supported
  9  more than is taken at once";

/// The end of a command's help: an example and the exit codes.
macro_rules! after_help {
    ($($example:literal),+ $(,)?) => {
        concat!(
            "Example:\n",
            $("  ", $example, "\n",)+
            "\n",
            "Exit codes: 0 done; 1 failed; 2 wrong command line; 3 not found; 4 damaged data; ",
            "5 open elsewhere;\n            6 no space; 7 read-only; 8 not supported; 9 too large"
        )
    };
}
pub(crate) use after_help;

/// The same for a command that opens a database to write: whose settings it works with.
macro_rules! after_help_of_writer {
    ($($example:literal),+ $(,)?) => {
        concat!(
            "Settings: those of the directory's newest OPTIONS file; the defaults where there is none. One of RocksDB's\n          ",
            "that is not ours is the default, and that is told. A damaged file is an error (4): without it the\n          ",
            "defaults are taken. Logs with damage are an error (4), too: see --drop-log-damage.\n\n",
            $crate::failure::after_help!($($example),+)
        )
    };
}
pub(crate) use after_help_of_writer;

/// The same for one that needs all of the settings.
macro_rules! after_help_of_rewriter {
    ($($example:literal),+ $(,)?) => {
        concat!(
            "Settings: those of the directory's newest OPTIONS file; the defaults where there is none.\n          ",
            "A damaged one (4), or one of RocksDB's settings that is not ours (1), is an error.\n\n",
            $crate::failure::after_help!($($example),+)
        )
    };
}
pub(crate) use after_help_of_rewriter;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine failed.
    Engine(Error),
    /// Output could not be written; a closed pipe is no failure.
    Output(std::io::Error),
    /// The arguments are wrong.
    Usage(String),
    /// What was asked for is not there.
    NotFound(String),
    /// Data is damaged; what and where was told already.
    Damaged(String),
    /// Something else.
    Failed(String),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Engine(e)
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::Output(e)
    }
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Output(_) | Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::Damaged(_) => 4,
            Self::Engine(e) if e.is_file_not_found() => 3,
            Self::Engine(e) if e.is_read_only_file_system() => 7,
            Self::Engine(e) => match e.kind() {
                ErrorKind::NotFound => 3,
                ErrorKind::Corruption => 4,
                ErrorKind::Busy => 5,
                ErrorKind::NoSpace => 6,
                ErrorKind::ReadOnly | ErrorKind::Closed => 7,
                ErrorKind::NotSupported => 8,
                ErrorKind::TooLarge => 9,
                _ => 1,
            },
        }
    }

    /// What is said about it; nothing about a reader that went away.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Output(_) if self.exit_code() == 0 => None,
            Self::Output(e) => Some(format!("cannot write the output: {e}")),
            Self::Engine(e) => Some(e.to_string()),
            Self::Usage(m) | Self::NotFound(m) | Self::Damaged(m) | Self::Failed(m) => {
                Some(m.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_documented_codes() {
        let code = |kind| Failure::Engine(Error::new(kind, "x")).exit_code();
        assert_eq!(code(ErrorKind::InvalidArgument), 1);
        assert_eq!(code(ErrorKind::Corruption), 4);
        assert_eq!(code(ErrorKind::Busy), 5);
        assert_eq!(code(ErrorKind::NoSpace), 6);
        assert_eq!(code(ErrorKind::ReadOnly), 7);
        assert_eq!(code(ErrorKind::NotSupported), 8);
        assert_eq!(code(ErrorKind::TooLarge), 9);
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(
            Failure::Engine(Error::io("cannot open", gone)).exit_code(),
            3
        );
        let mounted = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(
            Failure::Engine(Error::io("cannot open", mounted)).exit_code(),
            7
        );
        let pipe = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let failure = Failure::Output(pipe);
        assert_eq!((failure.exit_code(), failure.message()), (0, None));
    }
}
