//! Any bytes as a properties block: what is read and written again is read as the same.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::{Result, UserComparator};
use orogen_fuzz::Choices;
use orogen_fuzz::raw_table::{RawTable, sorted_block};
use orogen_sst::{CompressionType, TableProperties, TableReaderOptions};

fn read(block: &[u8], comparator: &UserComparator) -> Result<Arc<TableProperties>> {
    let mut table = RawTable::default();
    let data = table.block(&sorted_block(&[], 1), CompressionType::None);
    let index = table.index_of(data);
    table.meta_block("rocksdb.properties", block);
    let options = TableReaderOptions {
        comparator: comparator.clone(),
        ..Default::default()
    };
    Ok(table.open(index, 5, options)?.properties())
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let flags = choices.byte();
    let comparator = if flags & 1 == 0 {
        UserComparator::BYTEWISE
    } else {
        UserComparator::REVERSE_BYTEWISE
    };
    let block = if flags & 2 == 0 {
        choices.rest().to_vec()
    } else {
        // Values of any kind under names that are known.
        let names: Vec<String> = TableProperties::default()
            .to_entries()
            .into_keys()
            .collect();
        let mut entries = Vec::new();
        for name in names {
            if choices.byte() & 1 == 1 {
                entries.push((name.into_bytes(), choices.key()));
            }
        }
        sorted_block(&entries, 1 + usize::from(flags >> 4))
    };
    let Ok(properties) = read(&block, &comparator) else {
        return;
    };
    let entries: Vec<_> = properties
        .to_entries()
        .into_iter()
        .map(|(name, value)| (name.into_bytes(), value))
        .collect();
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0));
    let again = read(&sorted_block(&entries, 16), &comparator).expect("written by us");
    assert_eq!(again, properties);
    // Nothing that it names is longer than what it was read from, but for bytes that are not text.
    assert!(properties.memory_usage() <= 64 * block.len() + 8192);
});
