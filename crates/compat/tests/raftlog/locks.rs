//! Who has a directory open keeps the other out.

use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::{FileSystem, PosixFileSystem};
use orogen_raftlog::raw::{Engine, Options};
use orogen_testkit::TempDir;

use super::ours;
use super::theirs::Theirs;

#[test]
fn a_directory_is_open_in_one_of_them_only() {
    let temp = TempDir::new("raftlog-locks");
    let dir = temp.path().join("log");
    let options = Options::default();
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::new());
    let theirs = Theirs::open(&dir, &options);
    let refused = Engine::open(&fs, &dir, options.clone()).map(drop);
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::Busy));
    drop(theirs);
    let engine = ours(&dir, &options);
    let told = Theirs::refusal(&dir, &options);
    assert!(told.contains("another instance"), "{told}");
    let again = Engine::open(&fs, &dir, options.clone()).map(drop);
    assert_eq!(again.map_err(|e| e.kind()), Err(ErrorKind::Busy));
    drop(engine);
    drop(Theirs::open(&dir, &options));
}
