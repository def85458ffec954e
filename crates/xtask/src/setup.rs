//! `cargo x setup`: installs the real programs that the interchange tests compare with.
//!
//! Nothing is done that is done already, so it costs milliseconds from the second time on.

use std::path::PathBuf;
use std::process::Command;

use crate::step;
use crate::workspace;

pub(crate) const HELP: &str = "
usage: cargo x setup

Installs, where missing:
  - Debian's `rocksdb-tools` (db_bench, ldb, sst_dump), with apt-get; as root, or through sudo
  - a Python environment in .venv with `rocksdict`, a binding of a newer RocksDB
";

/// The binding's version; a newer one may write other formats, so it is pinned.
const ROCKSDICT: &str = "rocksdict==0.3.29";
const PROGRAMS: [&str; 3] = ["db_bench", "ldb", "sst_dump"];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(arg) = args.first() {
        return Err(format!("unknown argument `{arg}`"));
    }
    install_tools()?;
    install_binding()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A command that runs as root: as it is, or through sudo where there is one.
fn as_root(program: &str) -> Command {
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    if is_root || !on_path("sudo") {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

fn apt_install(packages: &[&str]) -> Result<(), String> {
    println!("installing {} with apt-get", packages.join(" "));
    step::shell(as_root("apt-get").args(["update", "-qq"]))?;
    step::shell(
        as_root("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages),
    )
}

fn install_tools() -> Result<(), String> {
    if PROGRAMS.iter().all(|p| on_path(p)) {
        return Ok(());
    }
    apt_install(&["rocksdb-tools"])?;
    match PROGRAMS.iter().find(|p| !on_path(p)) {
        None => Ok(()),
        Some(missing) => Err(format!("`{missing}` is still not on PATH")),
    }
}

/// The interpreter of the Python environment.
pub(crate) fn python() -> PathBuf {
    workspace::root().join(".venv").join("bin").join("python")
}

fn binding_works() -> bool {
    Command::new(python())
        .args(["-c", "import rocksdict"])
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn install_binding() -> Result<(), String> {
    if binding_works() {
        return Ok(());
    }
    let venv = workspace::root().join(".venv");
    let make = || {
        step::shell(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&venv),
        )
    };
    if make().is_err() {
        apt_install(&["python3", "python3-venv"])?;
        make()?;
    }
    step::shell(Command::new(python()).args(["-m", "pip", "install", "--quiet", ROCKSDICT]))?;
    if binding_works() {
        Ok(())
    } else {
        Err("rocksdict is installed but does not load".into())
    }
}
