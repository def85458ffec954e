//! The bytes of a file, in pieces that copies share until one of them is written.

use std::sync::Arc;

/// Bytes of a piece. Smaller: less to copy at the first write after a fork; larger: a cheaper
/// fork of large files.
const PIECE: usize = 32 << 10;

/// Bytes; a clone costs a pointer for each 32 KiB.
#[derive(Clone, Default)]
pub(super) struct Content {
    /// All but the last have `PIECE` bytes; none is empty.
    pieces: Vec<Arc<Vec<u8>>>,
    len: usize,
}

impl Content {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies from `offset` until the buffer or the content ends; the number of bytes.
    pub(super) fn read_at(&self, offset: usize, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done;
            let Some(piece) = self.pieces.get(at / PIECE) else {
                break;
            };
            let Some(rest) = piece.get(at % PIECE..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            let n = rest.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&rest[..n]);
            done += n;
        }
        done
    }

    pub(super) fn range(&self, start: usize, end: usize) -> Vec<u8> {
        let mut bytes = vec![0; end.min(self.len).saturating_sub(start)];
        self.read_at(start, &mut bytes);
        bytes
    }

    /// Writes over and beyond the end; a gap between is filled with zeros.
    pub(super) fn write_at(&mut self, offset: usize, mut bytes: &[u8]) {
        if offset > self.len {
            self.set_len(offset);
        }
        let mut at = offset;
        while !bytes.is_empty() {
            let within = at % PIECE;
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - within));
            if at / PIECE == self.pieces.len() {
                self.pieces.push(Arc::default());
            }
            let piece = Arc::make_mut(&mut self.pieces[at / PIECE]);
            let over = now.len().min(piece.len() - within);
            piece[within..within + over].copy_from_slice(&now[..over]);
            piece.extend_from_slice(&now[over..]);
            at += now.len();
            bytes = later;
        }
        self.len = self.len.max(at);
    }

    /// Cuts off, or lengthens with zeros.
    pub(super) fn set_len(&mut self, len: usize) {
        self.pieces.truncate(len.div_ceil(PIECE));
        if len < self.len {
            if let Some(last) = self.pieces.get_mut(len / PIECE) {
                Arc::make_mut(last).truncate(len % PIECE);
            }
        } else {
            let full = |i: usize| (len - i * PIECE).min(PIECE);
            if let Some(i) = self.pieces.len().checked_sub(1) {
                Arc::make_mut(&mut self.pieces[i]).resize(full(i), 0);
            }
            for i in self.pieces.len()..len.div_ceil(PIECE) {
                self.pieces.push(Arc::new(vec![0; full(i)]));
            }
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::random::Random;

    #[test]
    fn behaves_like_one_vector_and_copies_stay_apart() {
        let mut random = Random::of(7, 0);
        let mut pairs = vec![(Content::default(), Vec::new())];
        for _ in 0..2000 {
            let which = random.below(pairs.len());
            if random.below(20) == 0 && pairs.len() < 8 {
                let copy = pairs[which].clone();
                pairs.push(copy);
            }
            let (content, model) = &mut pairs[which];
            let place = |random: &mut Random, len: usize| match random.below(4) {
                0 => random.below(len + 1),
                1 => len,
                2 => random.below(4) * PIECE,
                _ => (len + random.below(100)).min(4 * PIECE),
            };
            let at = place(&mut random, model.len());
            if random.below(3) == 0 {
                content.set_len(at);
                model.resize(at, 0);
            } else {
                let most = if random.below(4) == 0 { 3 * PIECE } else { 600 };
                let size = random.below(most);
                let bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
                if size > 0 {
                    content.write_at(at, &bytes);
                    model.resize(model.len().max(at + size), 0);
                    model[at..at + size].copy_from_slice(&bytes);
                }
            }
            let from = random.below(model.len() + 10);
            let mut buf = vec![0; random.below(2 * PIECE)];
            let n = content.read_at(from, &mut buf);
            let expected = model.get(from..).unwrap_or_default();
            assert_eq!(buf[..n], expected[..expected.len().min(buf.len())]);
        }
        for (content, model) in &pairs {
            assert_eq!(content.len(), model.len());
            assert_eq!(content.range(0, usize::MAX), *model);
        }
    }
}
