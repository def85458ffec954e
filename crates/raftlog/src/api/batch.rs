//! Batches of messages.

use orogen_base::memory;
use protobuf::{CodedOutputStream, Message};

use super::{Error, Result};
use crate::batch::{Command, LogBatch as RawBatch};
use crate::format::BLOCK_LEN_MAX;

/// What entries are.
pub trait MessageExt: Send + Sync {
    /// The message that is an entry.
    type Entry: Message + Clone + PartialEq;

    /// Its index in the log.
    fn index(e: &Self::Entry) -> u64;
}

/// Operations on any groups, which are there all or none after a crash.
///
/// It is empty again once it was written. If that failed it is as it was, and can be written again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBatch(pub(super) RawBatch);

/// Puts the bytes of a message behind those that are there, as long as they are not too many.
fn encode<M: Message>(message: &M, out: &mut Vec<u8>) -> Result<()> {
    message.check_initialized()?;
    let len = message.compute_size() as usize;
    if out.len().saturating_add(len) > BLOCK_LEN_MAX {
        return Err(Error::Full);
    }
    memory::reserve(out, len, "a message")?;
    let mut stream = CodedOutputStream::vec(out);
    message.write_to_with_cached_sizes(&mut stream)?;
    stream.flush()?;
    Ok(())
}

impl LogBatch {
    /// A batch with room for `cap` operations.
    #[must_use]
    pub fn with_capacity(cap: usize) -> Self {
        Self(RawBatch::with_capacity(cap))
    }

    /// Adds entries of consecutive indexes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the indexes are not consecutive; [`Error::Full`] if the entries of the batch would
    /// be more than `i32::MAX` bytes; [`Error::Protobuf`]. The batch is then as it was.
    pub fn add_entries<M: MessageExt>(
        &mut self,
        region_id: u64,
        entries: &[M::Entry],
    ) -> Result<()> {
        let Some(first) = entries.first().map(M::index) else {
            return Ok(());
        };
        let is_bounded = first.checked_add(entries.len() as u64).is_some();
        if !is_bounded || !entries.iter().zip(first..).all(|(e, at)| M::index(e) == at) {
            return Err(Error::InvalidArgument(format!(
                "indexes are not consecutive group={region_id} first={first}"
            )));
        }
        self.0.add_with(region_id, first, entries, encode)
    }

    /// Adds a command.
    pub fn add_command(&mut self, region_id: u64, cmd: Command) {
        self.0.add_command(region_id, cmd);
    }

    /// Removes a key of a group.
    pub fn delete(&mut self, region_id: u64, key: Vec<u8>) {
        self.0.delete(region_id, key);
    }

    /// Sets a key of a group to a message.
    ///
    /// # Errors
    /// As [`Self::put`]; [`Error::Protobuf`].
    pub fn put_message<S: Message>(&mut self, region_id: u64, key: Vec<u8>, s: &S) -> Result<()> {
        let mut value = Vec::new();
        encode(s, &mut value)?;
        self.put(region_id, key, value)
    }

    /// Sets a key of a group.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the three bytes `__\x01`, which the format keeps for itself.
    pub fn put(&mut self, region_id: u64, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        Ok(self.0.put(region_id, key, value)?)
    }

    /// Moves the operations of `rhs` behind those of this batch.
    ///
    /// # Errors
    /// [`Error::Full`] if the entries would be too many bytes together. Both batches are then as they were.
    pub fn merge(&mut self, rhs: &mut Self) -> Result<()> {
        if self.0.block.len().saturating_add(rhs.0.block.len()) > BLOCK_LEN_MAX {
            return Err(Error::Full);
        }
        Ok(self.0.merge(&mut rhs.0)?)
    }

    /// True without operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that the record of this batch takes at most; 0 if it is empty.
    #[must_use]
    pub fn approximate_size(&self) -> usize {
        self.0.approximate_size()
    }
}
