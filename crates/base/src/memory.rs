//! Memory that may not be there: buffers that grow, or an error instead of the end of the process.
//!
//! Rust's collections abort where the allocator has nothing. What grows with data or options, and
//! so may ask for [`BIG_ALLOCATION`] or more at once, asks here first and passes the error on. A
//! list that grows with the number of files, families or threads is small and asks nobody.
//! `Hot path`: where there is room it is one comparison.

use crate::{Error, Result};

/// An allocation of at least so many bytes, more than 32 KiB, counts as big: those that engine code
/// makes for data are asked for here. Codecs have tables of 32 KiB whatever the data is.
pub const BIG_ALLOCATION: usize = (32 << 10) + 1;

/// The error of `bytes` that the allocator did not give for `what`.
#[cold]
#[must_use]
pub fn refused(what: &'static str, bytes: usize) -> Error {
    Error::no_memory("the allocator has no memory")
        .with("for", what)
        .with("bytes", bytes)
}

#[cold]
#[inline(never)]
fn grow<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    let bytes = list
        .len()
        .saturating_add(more)
        .saturating_mul(size_of::<T>());
    list.try_reserve(more).map_err(|_| refused(what, bytes))
}

/// Makes room for `more` elements; the list then grows by so many without asking.
///
/// # Errors
/// `NoMemory` naming `what` and the bytes; the list is as it was.
#[inline]
pub fn reserve<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    grow(list, more, what)
}

/// Makes room for `more` elements beyond those that there are and, but for what the allocator rounds up, no more.
///
/// # Errors
/// As [`reserve`].
pub fn reserve_exact<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<()> {
    let bytes = list
        .len()
        .saturating_add(more)
        .saturating_mul(size_of::<T>());
    list.try_reserve_exact(more)
        .map_err(|_| refused(what, bytes))
}

/// Adds an element.
///
/// # Errors
/// As [`reserve`].
#[inline]
pub fn push<T>(list: &mut Vec<T>, element: T, what: &'static str) -> Result<()> {
    reserve(list, 1, what)?;
    list.push(element);
    Ok(())
}

/// Adds bytes at the end.
///
/// # Errors
/// As [`reserve`].
#[inline]
pub fn append(list: &mut Vec<u8>, bytes: &[u8], what: &'static str) -> Result<()> {
    reserve(list, bytes.len(), what)?;
    list.extend_from_slice(bytes);
    Ok(())
}

/// An empty list with room for `len` elements and, but for what the allocator rounds up, no more.
///
/// # Errors
/// As [`reserve`].
#[inline]
pub fn with_capacity<T>(len: usize, what: &'static str) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(len)
        .map_err(|_| refused(what, len.saturating_mul(size_of::<T>())))?;
    Ok(list)
}

/// Changes the length; what is new is zero.
///
/// # Errors
/// As [`reserve`].
#[inline]
pub fn resize(list: &mut Vec<u8>, len: usize, what: &'static str) -> Result<()> {
    reserve(list, len.saturating_sub(list.len()), what)?;
    list.resize(len, 0);
    Ok(())
}

/// `len` zeros.
///
/// # Errors
/// As [`reserve`].
pub fn zeroed(len: usize, what: &'static str) -> Result<Vec<u8>> {
    let mut list = with_capacity(len, what)?;
    list.resize(len, 0);
    Ok(list)
}

/// A copy of `bytes`.
///
/// # Errors
/// As [`reserve`].
#[inline]
pub fn copied(bytes: &[u8], what: &'static str) -> Result<Vec<u8>> {
    let mut list = with_capacity(bytes.len(), what)?;
    list.extend_from_slice(bytes);
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_nobody_can_give_is_an_error_that_says_so() {
        let huge = isize::MAX as usize;
        let mut list = vec![1u8];
        let refusals = [
            reserve(&mut list, huge, "a list").unwrap_err(),
            resize(&mut list, huge, "a list").unwrap_err(),
            zeroed(huge, "a list").unwrap_err(),
            with_capacity::<u64>(huge, "a list").unwrap_err(),
        ];
        for e in refusals {
            assert_eq!(e.kind(), ErrorKind::NoMemory);
            assert_eq!(e.context("for"), Some("a list"));
            assert!(e.context("bytes").is_some());
        }
        assert_eq!(list, [1], "it is as it was");
    }

    #[test]
    fn with_room_nothing_else_is_different() {
        let mut list = Vec::new();
        push(&mut list, 7, "a list").unwrap();
        append(&mut list, b"ab", "a list").unwrap();
        resize(&mut list, 5, "a list").unwrap();
        assert_eq!(list, [7, b'a', b'b', 0, 0]);
        assert_eq!(copied(&list, "a copy").unwrap(), list);
        assert_eq!(zeroed(3, "zeros").unwrap(), [0; 3]);
        assert!(with_capacity::<u8>(100, "a list").unwrap().capacity() >= 100);
    }
}
