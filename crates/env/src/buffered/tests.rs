use std::path::Path;

use orogen_base::ErrorKind;
use parking_lot::Mutex;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::fs::{FileSystem, read_file};
use crate::mem::MemFileSystem;

#[derive(Default)]
struct Seen {
    appends: Vec<usize>,
    writebacks: Vec<u64>,
    syncs: usize,
    preallocated: u64,
    fail_append: bool,
}

/// A file that tells what reached it.
#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<Seen>>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl WritableFile for Recorder {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut seen = self.seen.lock();
        if seen.fail_append {
            return Err(Error::new(ErrorKind::NoSpace, "full"));
        }
        seen.appends.push(bytes.len());
        self.bytes.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.seen.lock().syncs += 1;
        Ok(())
    }

    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn start_writeback(&mut self) -> Result<()> {
        let size = self.size();
        self.seen.lock().writebacks.push(size);
        Ok(())
    }

    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        self.seen.lock().preallocated = bytes;
        Ok(())
    }
}

fn buffered(capacity: usize) -> (Recorder, BufferedFile) {
    let recorder = Recorder::default();
    (
        recorder.clone(),
        BufferedFile::with_capacity(Box::new(recorder), capacity),
    )
}

#[test]
fn small_appends_become_few_writes() {
    let (below, mut file) = buffered(1000);
    for i in 0..100_u8 {
        file.append(&[i; 33]).unwrap();
        assert_eq!(file.size(), (u64::from(i) + 1) * 33);
    }
    assert_eq!(below.seen.lock().appends, [1000; 3]);
    file.flush().unwrap();
    file.flush().unwrap();
    assert_eq!(below.seen.lock().appends, [1000, 1000, 1000, 300]);
    let expected: Vec<u8> = (0..100).flat_map(|i| [i; 33]).collect();
    assert_eq!(*below.bytes.lock(), expected);
}

#[test]
fn bytes_keep_their_order_for_all_sizes() {
    for capacity in [0, 1, 2, 7, 64] {
        let (below, mut file) = buffered(capacity);
        let mut expected = Vec::new();
        for i in 0..200_usize {
            let bytes = vec![i as u8; i * 7 % 150];
            file.append(&bytes).unwrap();
            expected.extend_from_slice(&bytes);
            assert_eq!(file.size(), expected.len() as u64);
        }
        assert_eq!(file.finish().unwrap(), expected.len() as u64);
        assert_eq!(*below.bytes.lock(), expected);
        assert_eq!(below.seen.lock().syncs, 1);
    }
}

#[test]
fn writeback_is_asked_for_every_so_many_bytes() {
    let (below, file) = buffered(100);
    let mut file = file.bytes_per_sync(250);
    for _ in 0..10 {
        file.append(&[0; 100]).unwrap();
    }
    assert_eq!(below.seen.lock().writebacks, [300, 600, 900]);
    file.append(&[0; 5]).unwrap();
    file.start_writeback().unwrap();
    assert_eq!(below.seen.lock().writebacks, [300, 600, 900, 1005]);
}

#[test]
fn preallocation_counts_what_waits_in_the_buffer() {
    let (below, mut file) = buffered(100);
    file.append(&[0; 60]).unwrap();
    file.preallocate(1000).unwrap();
    assert_eq!(below.seen.lock().preallocated, 1060);
}

#[test]
fn after_a_failure_every_call_fails() {
    let (below, mut file) = buffered(100);
    below.seen.lock().fail_append = true;
    file.append(&[0; 60]).unwrap();
    assert_eq!(
        file.append(&[0; 60]).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    below.seen.lock().fail_append = false;
    assert_eq!(file.append(&[0]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(file.flush().is_err());
    assert!(file.sync().is_err());
    assert!(file.start_writeback().is_err());
    assert!(file.into_inner().is_err());
    assert!(below.bytes.lock().is_empty());
    assert_eq!(below.seen.lock().syncs, 0);
}

#[test]
fn the_file_below_comes_out_flushed_and_a_drop_writes_nothing() {
    let fs = MemFileSystem::new();
    let path = Path::new("/a");
    let mut file = BufferedFile::new(fs.create(path).unwrap());
    file.append(b"bytes").unwrap();
    assert_eq!(read_file(&fs, path).unwrap(), b"");
    let mut below = file.into_inner().unwrap();
    assert_eq!(read_file(&fs, path).unwrap(), b"bytes");
    below.append(b"+").unwrap();
    let mut file = BufferedFile::new(below);
    file.append(b"abandoned").unwrap();
    drop(file);
    assert_eq!(read_file(&fs, path).unwrap(), b"bytes+");
}

#[test]
fn bytes_are_taken_from_the_rate_limiter() {
    let clock = Arc::new(ManualClock::new());
    let limiter = Arc::new(RateLimiter::new(1000, Arc::clone(&clock) as Arc<dyn Clock>));
    let (_, file) = buffered(100);
    let mut file = file.rate_limiter(Arc::clone(&limiter), IoPriority::Low, Arc::default());
    file.append(&[0; 2000]).unwrap();
    file.append(&[0; 50]).unwrap();
    assert_eq!(limiter.total_bytes(), 2000);
    assert_eq!(clock.now_micros(), 2_000_000);
}
