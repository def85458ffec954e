//! What can happen to an insert, counted for each lane by its writer.

use crate::node::{FOUR, FULL, ONE, TWO};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// The key was there.
    Found,
    /// An empty slot of a root or of a node of 256 was set.
    SetFree,
    /// An empty slot of another node was set.
    SetHeld,
    /// A child was added to a node with room.
    Appended,
    /// A node of two children was put above a leaf or a node.
    AboveTwo,
    /// The same with a node of four, for its path is long.
    AboveFour,
    /// The same with nodes of one child above it, for the path is longer.
    AboveLinked,
    /// A node was put above a key that ends there.
    AboveShorter,
    /// A node was put above, and the new key ends there.
    AboveLonger,
    /// A node was copied to get a place for the key that ends there.
    EndAdded,
    /// A node of one child became one of two.
    OneToTwo,
    /// A node of one child and a long path became one of four.
    OneToFour,
    /// A node of two children became one of four.
    TwoToFour,
    /// A node of 4 children became one of 8.
    FourGrown,
    /// Of 8, one of 12.
    EightGrown,
    /// Of 12, one of 16.
    TwelveGrown,
    /// Of 16, one of 24.
    SixteenGrown,
    /// Of 24, one of 32.
    TwentyFourGrown,
    /// Of 32, one of 48.
    ThirtyTwoGrown,
    /// Of 48, one of 64.
    FortyEightGrown,
    /// Of 64, one of 96.
    SixtyFourGrown,
    /// Of 96, one of 128.
    NinetySixGrown,
    /// Of 128, one of 256.
    ToFull,
    /// The slot or its node was not as it had been.
    LostSlot,
    /// The node was not as it had been, or another writer had its lock.
    LostHead,
    /// A lock was not there at once.
    Waited,
    /// A writer looked which of the freed pieces can be used again.
    Looked,
}

impl Event {
    /// How many there are.
    pub const COUNT: usize = Self::Looked as usize + 1;

    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Found,
        Self::SetFree,
        Self::SetHeld,
        Self::Appended,
        Self::AboveTwo,
        Self::AboveFour,
        Self::AboveLinked,
        Self::AboveShorter,
        Self::AboveLonger,
        Self::EndAdded,
        Self::OneToTwo,
        Self::OneToFour,
        Self::TwoToFour,
        Self::FourGrown,
        Self::EightGrown,
        Self::TwelveGrown,
        Self::SixteenGrown,
        Self::TwentyFourGrown,
        Self::ThirtyTwoGrown,
        Self::FortyEightGrown,
        Self::SixtyFourGrown,
        Self::NinetySixGrown,
        Self::ToFull,
        Self::LostSlot,
        Self::LostHead,
        Self::Waited,
        Self::Looked,
    ];

    pub(crate) fn grown(from: u32, to: u32) -> Self {
        match (from, to) {
            (_, FULL) => Self::ToFull,
            (ONE, TWO) => Self::OneToTwo,
            (ONE, _) => Self::OneToFour,
            (TWO, _) => Self::TwoToFour,
            (kind, _) => Self::ALL[Self::FourGrown as usize + (kind - FOUR) as usize],
        }
    }
}
