//! A place in the index of a table, over one level or two.

use orogen_base::{Result, memory};

use crate::block::{Block, IndexCursor, IndexFormat, Located};
use crate::dump::BlockKind;
use crate::footer::BlockHandle;

use super::{BlockRef, TableReadOptions, TableReader};

/// A place in the index.
pub(crate) struct IndexPosition<'a> {
    top: BlockRef<'a>,
    top_cursor: IndexCursor,
    /// With two levels: the index block that the top leads to.
    part: Option<Part>,
    /// For the cursor of the first part.
    spare: Vec<u8>,
}

struct Part {
    handle: BlockHandle,
    block: std::sync::Arc<Block>,
    cursor: IndexCursor,
}

/// Where the blocks stand that an index block leads to.
pub(super) fn handles_of(block: &Block, format: &IndexFormat) -> Result<Vec<BlockHandle>> {
    let mut cursor = IndexCursor::with_buffer(Vec::new());
    let mut handles = Vec::new();
    let mut on = cursor.seek_to_first(block, format)?;
    while on {
        memory::push(&mut handles, cursor.handle(), "handles of blocks")?;
        on = cursor.next(block, format)?;
    }
    Ok(handles)
}

#[derive(Clone, Copy)]
enum Side {
    First,
    Last,
}

impl<'a> IndexPosition<'a> {
    pub(super) fn new(top: BlockRef<'a>, buffers: [Vec<u8>; 2]) -> Self {
        let [buffer, spare] = buffers;
        Self {
            top,
            top_cursor: IndexCursor::with_buffer(buffer),
            part: None,
            spare,
        }
    }

    /// The buffers that were given, for the next position.
    pub(crate) fn into_buffers(self) -> [Vec<u8>; 2] {
        let spare = self.part.map_or(self.spare, |p| p.cursor.into_buffer());
        [self.top_cursor.into_buffer(), spare]
    }

    #[inline]
    fn cursor(&self) -> &IndexCursor {
        match &self.part {
            Some(part) => &part.cursor,
            None => &self.top_cursor,
        }
    }

    /// Where the data block stands.
    #[inline]
    pub(crate) fn handle(&self) -> BlockHandle {
        self.cursor().handle()
    }

    /// A key that is not before any of the data block, and before all of the next.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.cursor().key()
    }

    /// Moves to the block that would have `internal_key`; false if it is after all blocks.
    #[inline]
    pub(crate) fn seek(
        &mut self,
        table: &TableReader,
        read: &TableReadOptions,
        internal_key: &[u8],
    ) -> Result<bool> {
        let format = table.index_format();
        let Some(top_format) = table.top_index_format() else {
            let (top, target) = (self.top.get(), format.target(internal_key));
            return match table.index_digest() {
                Some(digest) => match digest.locate(orogen_base::key::user_key(internal_key)) {
                    Located::Entry(i) => self.top_cursor.seek_to_restart(top, i, format),
                    Located::AfterAll => {
                        self.top_cursor.invalidate();
                        Ok(false)
                    }
                    Located::Among(low, high) => {
                        self.top_cursor
                            .seek_within(top, target, format, (low, high))
                    }
                },
                None => self.top_cursor.seek(top, target, format),
            };
        };
        let target = top_format.target(internal_key);
        let mut on = self.top_cursor.seek(self.top.get(), target, top_format)?;
        while on {
            let part = self.enter_part(table, read)?;
            if part
                .cursor
                .seek(&part.block, format.target(internal_key), format)?
            {
                return Ok(true);
            }
            on = self.top_cursor.next(self.top.get(), top_format)?;
        }
        Ok(false)
    }

    pub(crate) fn seek_to_first(
        &mut self,
        table: &TableReader,
        read: &TableReadOptions,
    ) -> Result<bool> {
        let Some(top_format) = table.top_index_format() else {
            return self
                .top_cursor
                .seek_to_first(self.top.get(), table.index_format());
        };
        let on = self.top_cursor.seek_to_first(self.top.get(), top_format)?;
        self.enter_from(on, table, read, Side::First)
    }

    pub(crate) fn seek_to_last(
        &mut self,
        table: &TableReader,
        read: &TableReadOptions,
    ) -> Result<bool> {
        let Some(top_format) = table.top_index_format() else {
            return self
                .top_cursor
                .seek_to_last(self.top.get(), table.index_format());
        };
        let on = self.top_cursor.seek_to_last(self.top.get(), top_format)?;
        self.enter_from(on, table, read, Side::Last)
    }

    pub(crate) fn next(&mut self, table: &TableReader, read: &TableReadOptions) -> Result<bool> {
        let format = table.index_format();
        let Some(top_format) = table.top_index_format() else {
            return self.top_cursor.next(self.top.get(), format);
        };
        if let Some(part) = &mut self.part
            && part.cursor.next(&part.block, format)?
        {
            return Ok(true);
        }
        let on = self.top_cursor.next(self.top.get(), top_format)?;
        self.enter_from(on, table, read, Side::First)
    }

    /// After an error: the key up to which the index block that cannot be entered leads, if it is one of two levels;
    /// [`Self::next`] passes over it.
    pub(crate) fn unread_part(&self, table: &TableReader) -> Option<&[u8]> {
        let is_part = table.top_index_format().is_some() && self.top_cursor.valid();
        (is_part && self.part.is_none()).then(|| self.top_cursor.key())
    }

    /// The index blocks that the top leads to.
    pub(crate) fn parts(&self, table: &TableReader) -> Result<Vec<BlockHandle>> {
        match table.top_index_format() {
            Some(format) => handles_of(self.top.get(), format),
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn prev(&mut self, table: &TableReader, read: &TableReadOptions) -> Result<bool> {
        let format = table.index_format();
        let Some(top_format) = table.top_index_format() else {
            return self.top_cursor.prev(self.top.get(), format);
        };
        if let Some(part) = &mut self.part
            && part.cursor.prev(&part.block, format)?
        {
            return Ok(true);
        }
        let on = self.top_cursor.prev(self.top.get(), top_format)?;
        self.enter_from(on, table, read, Side::Last)
    }

    /// Opens the index block that the top leads to, unless it is open.
    fn enter_part(&mut self, table: &TableReader, read: &TableReadOptions) -> Result<&mut Part> {
        let handle = self.top_cursor.handle();
        let part = match self.part.take() {
            Some(part) if part.handle == handle => part,
            other => {
                if let Some(old) = other {
                    self.spare = old.cursor.into_buffer();
                }
                Part {
                    handle,
                    block: table.block(handle, BlockKind::Index, read)?,
                    cursor: IndexCursor::with_buffer(std::mem::take(&mut self.spare)),
                }
            }
        };
        Ok(self.part.insert(part))
    }

    fn enter_from(
        &mut self,
        mut on: bool,
        table: &TableReader,
        read: &TableReadOptions,
        side: Side,
    ) -> Result<bool> {
        let format = table.index_format();
        while on {
            let part = self.enter_part(table, read)?;
            let found = match side {
                Side::First => part.cursor.seek_to_first(&part.block, format),
                Side::Last => part.cursor.seek_to_last(&part.block, format),
            };
            if found.inspect_err(|_| self.part = None)? {
                return Ok(true);
            }
            let Some(top_format) = table.top_index_format() else {
                break;
            };
            on = match side {
                Side::First => self.top_cursor.next(self.top.get(), top_format)?,
                Side::Last => self.top_cursor.prev(self.top.get(), top_format)?,
            };
        }
        Ok(false)
    }
}
