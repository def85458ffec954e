//! How a thread waits for what becomes of its request, and how it is woken.
//!
//! Each request that is not led by its own thread has a ticket, in which the leader leaves what became of it. A thread that waits for a sync
//! sleeps in a [`Room`] with the rest of its group, who are woken by one call; any other looks a few times first, and sleeps by itself.
//!
//! A ticket is set before its thread is woken, and whoever was set is woken, by a panic too ([`Sleepers`]).

use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;

use orogen_base::sync::atomic::{AtomicBool, Ordering};
use orogen_base::sync::{Condvar, Mutex, spins, thread};
use orogen_env::Room;

use super::{Outcome, Request, Spent};

pub(super) enum State {
    Waiting,
    /// Its thread leads now, and writes it.
    Leads(Request),
    Done(Outcome, Spent),
}

/// Where those sleep who wait for a sync: those of a group in one room, whoever comes for the next one in the other.
pub(super) type Rooms = Arc<[Room; 2]>;

/// How a thread that waits sleeps.
pub(super) enum Bed {
    /// By itself: it mostly has what it waits for before it sleeps, and nobody need be woken.
    Alone(Condvar),
    /// With all of its group.
    In {
        rooms: Rooms,
        room: usize,
        bit: NonZeroU32,
    },
}

pub(super) struct Ticket {
    /// Says that `state` is set, without its lock.
    is_set: AtomicBool,
    state: Mutex<State>,
    bed: Bed,
}

/// A thread that waits looks so often, and lets others run in between, before it sleeps: to wake it
/// costs as much as a write. One that waits for a sync, which takes many times as long, sleeps at once.
pub(super) const LOOKS: usize = 10;

impl Ticket {
    pub(super) fn new(bed: Bed) -> Self {
        Self {
            is_set: AtomicBool::new(false),
            state: Mutex::new(State::Waiting),
            bed,
        }
    }

    /// Its thread finds `state`, once it is woken.
    pub(super) fn set(&self, state: State) {
        *self.state.lock() = state;
        self.is_set.store(true, Ordering::Release);
    }

    pub(super) fn wake(&self) {
        match &self.bed {
            Bed::Alone(condition) => {
                condition.notify_one();
            }
            Bed::In { rooms, room, bit } => rooms[*room].wake(*bit),
        }
    }

    /// Waits until the request is done, or to be led by its own thread; sleeps after `looks`.
    pub(super) fn wait(&self, looks: usize) -> State {
        for _ in 0..spins(looks) {
            if self.is_set.load(Ordering::Acquire) {
                break;
            }
            thread::yield_now();
        }
        match &self.bed {
            Bed::Alone(condition) => {
                let mut state = self.state.lock();
                loop {
                    match mem::replace(&mut *state, State::Waiting) {
                        State::Waiting => condition.wait(&mut state),
                        other => return other,
                    }
                }
            }
            Bed::In { rooms, room, bit } => {
                rooms[*room].wait(*bit, || self.is_set.load(Ordering::Acquire));
                mem::replace(&mut *self.state.lock(), State::Waiting)
            }
        }
    }
}

/// Those of a group that were told and may sleep: in the rooms, who are woken together, and behind them those that sleep alone. They are woken
/// when it is dropped, by a panic too.
pub(super) struct Sleepers<'q> {
    rooms: &'q [Room; 2],
    bits: [u32; 2],
    alone: Vec<Arc<Ticket>>,
}

impl<'q> Sleepers<'q> {
    pub(super) fn of(rooms: &'q [Room; 2]) -> Self {
        Self {
            rooms,
            bits: [0; 2],
            alone: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, ticket: Arc<Ticket>) {
        match &ticket.bed {
            Bed::Alone(_) => self.alone.push(ticket),
            Bed::In { room, bit, .. } => self.bits[*room] |= bit.get(),
        }
    }
}

impl Drop for Sleepers<'_> {
    fn drop(&mut self) {
        for (room, bits) in self.rooms.iter().zip(self.bits) {
            if let Some(bits) = NonZeroU32::new(bits) {
                room.wake(bits);
            }
        }
        self.alone.iter().for_each(|ticket| ticket.wake());
    }
}
