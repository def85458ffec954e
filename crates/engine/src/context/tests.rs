use std::path::Path;
use std::sync::Arc;

use orogen_env::MemFileSystem;

use super::LogHolders;
use crate::batch::WriteBatch;
use crate::core::Core;
use crate::jobs::manual_flush;
use crate::open::families;
use crate::open::recover::{self, Mode};
use crate::options::{FlushOptions, Options, WriteOptions};

fn open() -> Core {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    recover::open(Path::new("/db"), &options, Mode::ReadWrite).unwrap()
}

fn put(core: &Core, family: u32) {
    let mut batch = WriteBatch::new();
    batch.put(family, b"key", b"value");
    core.write
        .write(WriteOptions::default(), &mut batch)
        .unwrap();
}

#[test]
fn logs_of_a_family_made_after_the_list_are_not_given_up() {
    let core = open();
    let context = &*core.context;
    put(&core, 0);
    // A purge or a flush lists the families, and is held up.
    let listed = LogHolders::list(context);
    let options = (*core.default_family.options()).clone();
    let create = || families::create(context, &core.write, "new", options);
    let made = core.write.exclusive(create).unwrap();
    put(&core, made.id);
    manual_flush::flush(
        context,
        &core.write,
        &FlushOptions { wait: true },
        std::slice::from_ref(&core.default_family),
    )
    .unwrap();
    let needed = made.state().min_log_needed();
    assert!(core.default_family.state().min_log_needed() > needed);
    assert!(listed.min_log_needed() <= needed);
    assert!(listed.min_log_needed_beside(Some(0)) <= needed);
    // One that lists them now gives up nothing either.
    assert_eq!(context.min_log_needed(), needed);
}

#[test]
fn logs_are_given_up_once_no_family_needs_them() {
    let core = open();
    let context = &*core.context;
    put(&core, 0);
    let first = context.logs.current();
    assert_eq!(context.min_log_needed(), first);
    manual_flush::flush(
        context,
        &core.write,
        &FlushOptions { wait: true },
        std::slice::from_ref(&core.default_family),
    )
    .unwrap();
    assert!(context.min_log_needed() > first);
    assert_eq!(context.min_log_needed(), context.logs.current());
}
